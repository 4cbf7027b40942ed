"""Tables of any kind become design matrices whose encoding is remembered."""

from .reading import read_table
from .table import Table

__all__ = ["Table", "read_table"]
