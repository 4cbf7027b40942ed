"""Results of a run: draws, their diagnostics, and the progress display."""

from .draws import Draws, Timing
from .health import Health

__all__ = ["Draws", "Health", "Timing"]
