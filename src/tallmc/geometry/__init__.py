"""Geometry: the coordinates in which the dynamics move."""

from .base import GeometryChoice
from .dense import Dense
from .diagonal import Diagonal
from .gradient_noise import GradientNoise
from .identity import Identity

__all__ = ["Dense", "Diagonal", "GeometryChoice", "GradientNoise", "Identity"]
