"""Subsampling: which rows a step sees, how many, and with what weight."""

from .base import SizeChoice, SubsampleChoice
from .full import AllRows
from .optimal import Optimal
from .preferential import Preferential
from .size import Adaptive, Fixed
from .uniform import Uniform
from .weights import curvature_weights, gradient_weights, lipschitz_weights, probabilities

__all__ = [
    "Adaptive",
    "AllRows",
    "Fixed",
    "Optimal",
    "Preferential",
    "SizeChoice",
    "SubsampleChoice",
    "Uniform",
    "curvature_weights",
    "gradient_weights",
    "lipschitz_weights",
    "probabilities",
]
