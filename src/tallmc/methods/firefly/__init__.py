"""Firefly Monte Carlo: exact draws from a few rows per step, with a lower bound per row."""

from .bound import BoundChoice
from .gaussian import gaussian_bound, uniform_gaussian_bound
from .method import FlyMC
from .tangent import Tangent
from .taylor import Taylor

__all__ = [
    "BoundChoice",
    "FlyMC",
    "Tangent",
    "Taylor",
    "gaussian_bound",
    "uniform_gaussian_bound",
]
