"""Exact accept steps from a few rows: Metropolis–Hastings with scalable subsampling."""

from .method import SubsampledMH

__all__ = ["SubsampledMH"]
