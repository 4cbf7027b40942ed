"""Geometry: the coordinates in which the dynamics move."""

from .base import GeometryChoice
from .dense import Dense
from .diagonal import Diagonal
from .identity import Identity
from .noise_diagonal import NoiseDiagonal

__all__ = ["Dense", "Diagonal", "GeometryChoice", "Identity", "NoiseDiagonal"]
