"""Firefly Monte Carlo: exact draws for logistic regression from a few rows per step."""

from .method import FlyMC

__all__ = ["FlyMC"]
