"""A method that chooses its parts and settings: the default of `sample(posterior)`."""

from .method import FEW_ROWS, Automatic

__all__ = ["FEW_ROWS", "Automatic"]
