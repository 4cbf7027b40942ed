"""Corrections for gradient noise: how its covariance is estimated and removed from a step."""

from .base import AbstractNoiseEstimate
from .choice import NoiseCorrection
from .injected import diffusion_noise, drag, reduced_noise, transformed

__all__ = [
    "AbstractNoiseEstimate",
    "NoiseCorrection",
    "diffusion_noise",
    "drag",
    "reduced_noise",
    "transformed",
]
