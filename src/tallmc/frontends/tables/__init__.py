"""Tables of any kind become design matrices whose encoding is remembered."""

from .design import Design, GroupDesign
from .encoding import DesignEncoding
from .making import make_design
from .reading import read_table
from .responses import ResponseEncoding, ResponseKind
from .table import Table

__all__ = [
    "Design",
    "DesignEncoding",
    "GroupDesign",
    "ResponseEncoding",
    "ResponseKind",
    "Table",
    "make_design",
    "read_table",
]
