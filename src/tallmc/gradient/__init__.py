"""Gradient estimators: what is done with the rows drawn."""

from .base import AbstractGradient, AbstractMemoryless, Batch, GradientChoice
from .control_variate import ControlVariate, ControlVariateGradient, SecondOrderGradient
from .full import Full
from .saga import SAGA, SagaGradient
from .simple import Simple, SimpleGradient
from .svrg import SVRG, SvrgGradient

__all__ = [
    "SAGA",
    "SVRG",
    "AbstractGradient",
    "AbstractMemoryless",
    "Batch",
    "ControlVariate",
    "ControlVariateGradient",
    "Full",
    "GradientChoice",
    "SagaGradient",
    "SecondOrderGradient",
    "Simple",
    "SimpleGradient",
    "SvrgGradient",
]
