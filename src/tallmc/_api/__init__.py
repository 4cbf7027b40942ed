"""The entry points: `sample`, `check`, `resume` and `cite`."""

from .check import check
from .cite import cite
from .resume import resume
from .sample import sample

__all__ = ["check", "cite", "resume", "sample"]
