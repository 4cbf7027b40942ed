"""A report on a stored run: one self-contained HTML page."""

from .write import write_report

__all__ = ["write_report"]
