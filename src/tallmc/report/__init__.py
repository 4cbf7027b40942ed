"""A report on a stored run: one self-contained HTML page."""

from .page import write_report

__all__ = ["write_report"]
