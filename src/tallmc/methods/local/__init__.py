"""Langevin dynamics that move the shared parameters and the groups of the drawn rows only."""

from .method import LocalSGLD

__all__ = ["LocalSGLD"]
