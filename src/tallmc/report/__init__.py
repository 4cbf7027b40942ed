"""A stored run as one HTML page that needs nothing else: no network, no other file."""

from .write import write_report

__all__ = ["write_report"]
