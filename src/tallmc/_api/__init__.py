"""The entry points: `sample`, `check`, `resume`, `cite`, and `Draws.update`."""

from .check import check
from .cite import cite
from .resume import resume
from .sample import sample
from .update import update

__all__ = ["check", "cite", "resume", "sample", "update"]
