"""A method that chooses itself: `sample(posterior)` with nothing to tune."""

from .method import Automatic

__all__ = ["Automatic"]
