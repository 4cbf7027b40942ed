"""Exact accept steps from a few rows: Metropolis–Hastings with scalable subsampling."""

from .austerity import Austerity
from .method import SubsampledMH

__all__ = ["Austerity", "SubsampledMH"]
