"""The entry points: `sample`, `check`, `cite`, and `Draws.update`."""

from .check import check
from .cite import cite
from .sample import sample
from .update import update

__all__ = ["check", "cite", "sample", "update"]
