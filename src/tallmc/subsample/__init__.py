"""Subsampling: which rows a step sees, how many rows, and their weights."""

from ..rows.probabilities import probabilities
from .bandit import Bandit
from .base import SizeChoice, SubsampleChoice
from .determinantal import Determinantal
from .exponential import ExponentiallyWeighted
from .full import AllRows
from .measured import Measured
from .optimal import Optimal
from .poisson_disk import PoissonDisk
from .preferential import Preferential
from .size import Adaptive, Fixed
from .stratified import Stratified
from .uniform import Uniform
from .weights import (
    curvature_weights,
    frobenius_weights,
    gradient_weights,
    lipschitz_weights,
    residual_weights,
)

__all__ = [
    "Adaptive",
    "AllRows",
    "Bandit",
    "Determinantal",
    "ExponentiallyWeighted",
    "Fixed",
    "Measured",
    "Optimal",
    "PoissonDisk",
    "Preferential",
    "SizeChoice",
    "Stratified",
    "SubsampleChoice",
    "Uniform",
    "curvature_weights",
    "frobenius_weights",
    "gradient_weights",
    "lipschitz_weights",
    "probabilities",
    "residual_weights",
]
