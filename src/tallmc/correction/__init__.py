"""Corrections for gradient noise: how its covariance is estimated and removed from a step."""

from .base import AbstractNoiseEstimate
from .choice import NoiseCorrection
from .injected import drag, reduced_noise

__all__ = ["AbstractNoiseEstimate", "NoiseCorrection", "drag", "reduced_noise"]
