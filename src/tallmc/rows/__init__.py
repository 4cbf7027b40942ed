"""Rows: where the data are stored, and the four ways to read them."""

from .base import AbstractRows, RowAccess, RowBlock
from .batch import Batch, RowDraws
from .manifest import Column, Manifest, RowStoreError
from .opening import open_rows as open
from .resident import ResidentRows, resident
from .sharded import ShardedRows

__all__ = [
    "AbstractRows",
    "Batch",
    "Column",
    "Manifest",
    "ResidentRows",
    "RowAccess",
    "RowBlock",
    "RowDraws",
    "RowStoreError",
    "ShardedRows",
    "open",
    "resident",
]
