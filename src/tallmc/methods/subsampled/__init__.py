"""Accept steps from a few rows: Metropolis–Hastings with scalable subsampling, and others."""

from .method import SubsampledMH

__all__ = ["SubsampledMH"]
