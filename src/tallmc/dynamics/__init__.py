"""Dynamics: how a gradient estimate moves the state."""

from .base import AbstractDynamics, DynamicsChoice
from .langevin import Langevin, LangevinDynamics
from .mala import MALA, MalaDynamics

__all__ = ["MALA", "AbstractDynamics", "DynamicsChoice", "Langevin", "LangevinDynamics", "MalaDynamics"]
