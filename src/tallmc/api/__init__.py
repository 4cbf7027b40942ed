"""The entry points: `sample`, `check` and `resume`."""

from .check import check
from .resume import resume
from .sample import sample

__all__ = ["check", "resume", "sample"]
