"""Tuning: choose the step size, the size and the noise threshold of a method."""

from ..methods.noise_threshold import noise_threshold
from .budget import Budget
from .grid import grid
from .halving import Candidate, Round, Tuned, tune

__all__ = ["Budget", "Candidate", "Round", "Tuned", "grid", "noise_threshold", "tune"]
