"""Points on simplices: SGRLD in the expanded mean, and the Cox–Ingersoll–Ross process."""

from .method import SimplexSampler
from .transitions import AbstractGammaTransition, CoxIngersollRoss, ExpandedMean

__all__ = ["AbstractGammaTransition", "CoxIngersollRoss", "ExpandedMean", "SimplexSampler"]
