"""Progress while a run lasts: the facts, and where they are shown."""

from .facts import ChainFacts, Progress
from .show import showing

__all__ = ["ChainFacts", "Progress", "showing"]
