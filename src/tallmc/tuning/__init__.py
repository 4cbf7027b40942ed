"""Choosing what a method leaves open."""

from .budget import Budget
from .grid import grid
from .halving import Candidate, Round, Tuned, tune
from .threshold import noise_threshold

__all__ = ["Budget", "Candidate", "Round", "Tuned", "grid", "noise_threshold", "tune"]
