"""The zig-zag process with subsampling and control variates."""

from .method import ZigZag

__all__ = ["ZigZag"]
