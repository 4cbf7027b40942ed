"""Results of a run: draws, their diagnostics, and the progress display."""

from .draws import Draws, Timing
from .report import RunReport

__all__ = ["Draws", "RunReport", "Timing"]
