"""The entry points: `sample`, `check` and `cite`."""

from .check import check
from .cite import cite
from .sample import sample

__all__ = ["check", "cite", "sample"]
