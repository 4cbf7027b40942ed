"""Reference draws from NUTS on the full data."""

from .nuts import nuts

__all__ = ["nuts"]
