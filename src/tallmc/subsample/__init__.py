"""Subsampling: which rows a step sees, how many rows, and their weights."""

from .._rows.probabilities import probabilities
from .bandit import Bandit
from .bounded_noise import BoundedNoise
from .exponential import ExponentiallyWeighted
from .measured import TargetNoise
from .optimal import Optimal
from .selection import Fixed, SizeChoice, SubsampleChoice
from .stratified import Stratified
from .uniform import AllRows, Uniform
from .weights import Preferential, curvature_weights, gradient_weights, residual_weights

__all__ = [
    "AllRows",
    "Bandit",
    "BoundedNoise",
    "ExponentiallyWeighted",
    "Fixed",
    "Optimal",
    "Preferential",
    "SizeChoice",
    "Stratified",
    "SubsampleChoice",
    "TargetNoise",
    "Uniform",
    "curvature_weights",
    "gradient_weights",
    "probabilities",
    "residual_weights",
]
