"""The entry points: `sample`, `check`, `resume` and `consensus`."""

from .check import check
from .consensus import consensus
from .resume import resume
from .sample import sample

__all__ = ["check", "consensus", "resume", "sample"]
