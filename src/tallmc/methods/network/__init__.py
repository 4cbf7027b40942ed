"""Communities in networks: mini-batches of nodes and of their pairs."""

from .method import CommunitySampler

__all__ = ["CommunitySampler"]
