"""Gradient estimators: how the drawn rows become an estimate of ∇f(θ)."""

from ..rows.batch import Batch
from .base import AbstractGradient, AbstractMemoryless, GradientChoice
from .control_variate import ControlVariate, ControlVariateGradient, SecondOrderGradient
from .full import Full
from .saga import SAGA, SagaGradient
from .simple import Simple, SimpleGradient
from .svrg import SVRG, SvrgGradient
from .within_radius import WithinRadiusGradient

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
    "WithinRadiusGradient",
]
