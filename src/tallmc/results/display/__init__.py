"""Display of the progress of a run."""

from ...engine.progress import ChainFacts, Progress
from .show import showing

__all__ = ["ChainFacts", "Progress", "showing"]
