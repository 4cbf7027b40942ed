"""Gradient estimators: how the drawn rows become an estimate of ∇f(θ)."""

from .._rows.law import Batch
from .control_variate import ControlVariate
from .estimator import AbstractGradient, Full, Simple
from .saga import SAGA
from .svrg import SVRG

__all__ = ["SAGA", "SVRG", "AbstractGradient", "Batch", "ControlVariate", "Full", "Simple"]
