"""Dynamics: how a gradient estimate moves the state."""

from .base import AbstractDynamics, DynamicsChoice
from .langevin import Langevin, LangevinDynamics
from .mala import MALA, MalaDynamics
from .random_walk import RandomWalk, RandomWalkDynamics

__all__ = [
    "MALA",
    "AbstractDynamics",
    "DynamicsChoice",
    "Langevin",
    "LangevinDynamics",
    "MalaDynamics",
    "RandomWalk",
    "RandomWalkDynamics",
]
