"""Tables of any kind become design matrices whose encoding is remembered."""

from .encoding import Design, DesignEncoding, GroupDesign
from .making import make_design
from .reading import read_table
from .responses import ResponseEncoding, ResponseKind
from .store_terms import StoreTerms, store_terms
from .table import Table

__all__ = [
    "Design",
    "DesignEncoding",
    "GroupDesign",
    "ResponseEncoding",
    "ResponseKind",
    "StoreTerms",
    "Table",
    "make_design",
    "read_table",
    "store_terms",
]
