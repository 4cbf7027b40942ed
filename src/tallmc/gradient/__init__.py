"""Gradient estimators: what is done with the rows drawn."""

from .base import AbstractGradient, Batch, GradientChoice
from .control_variate import ControlVariate, ControlVariateGradient
from .full import Full
from .simple import Simple, SimpleGradient

__all__ = [
    "AbstractGradient",
    "Batch",
    "ControlVariate",
    "ControlVariateGradient",
    "Full",
    "GradientChoice",
    "Simple",
    "SimpleGradient",
]
