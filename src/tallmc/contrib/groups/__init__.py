"""Langevin dynamics that move the shared parameters and the groups of the drawn rows only."""

from .matrix_factorisation import matrix_factorisation
from .posterior import Local, LocalPosterior, NormalGroups
from .sampler import local_sgld

__all__ = [
    "Local",
    "LocalPosterior",
    "NormalGroups",
    "local_sgld",
    "matrix_factorisation",
]
