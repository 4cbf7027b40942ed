"""A method that chooses its parts and settings: the default of `sample(posterior)`."""

from .method import Automatic

__all__ = ["Automatic"]
