"""Rows: where the data are stored, and the four ways to read them."""

from .base import AbstractRows, RowAccess, RowBlock
from .batch import Batch, RowDraws
from .manifest import Column, RowManifest, RowStoreError
from .opening import open_rows as open
from .resident import ResidentRows, resident
from .sharded import ShardedRows

__all__ = [
    "AbstractRows",
    "Batch",
    "Column",
    "ResidentRows",
    "RowAccess",
    "RowBlock",
    "RowDraws",
    "RowManifest",
    "RowStoreError",
    "ShardedRows",
    "open",
    "resident",
]
