"""Accept steps from a few rows: Metropolis–Hastings with scalable subsampling, and others."""

from .austerity import Austerity
from .method import SubsampledMH
from .pseudo_marginal import PseudoMarginal

__all__ = ["Austerity", "PseudoMarginal", "SubsampledMH"]
