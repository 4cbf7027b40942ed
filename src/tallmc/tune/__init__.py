"""Choosing what a method leaves open."""

from .threshold import noise_threshold

__all__ = ["noise_threshold"]
