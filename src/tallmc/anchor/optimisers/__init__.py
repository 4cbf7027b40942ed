"""Optimisers: Newton for few dimensions, L-BFGS for many, Adam and SGD as in the papers."""

from .adam import Adam
from .base import AbstractOptimiser
from .lbfgs import LBFGS
from .newton import Newton
from .sgd import SGD

__all__ = ["LBFGS", "SGD", "AbstractOptimiser", "Adam", "Newton"]
