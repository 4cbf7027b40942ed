"""The entry points: `sample` and `resume`."""

from .resume import resume
from .sample import sample

__all__ = ["resume", "sample"]
