"""Optimisers: Newton for few dimensions, L-BFGS for many, Adam on minibatches as in the papers."""

from .adam import Adam
from .base import AbstractOptimiser
from .lbfgs import LBFGS
from .newton import Newton

__all__ = ["LBFGS", "AbstractOptimiser", "Adam", "Newton"]
