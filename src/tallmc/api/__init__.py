"""The entry points: `sample`, `check`, `resume`, `consensus` and `cite`."""

from .check import check
from .cite import cite
from .consensus import consensus
from .resume import resume
from .sample import sample

__all__ = ["check", "cite", "consensus", "resume", "sample"]
