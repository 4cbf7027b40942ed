"""Rows: where the data are stored, and the four ways to read them."""

from ._rows.access import AbstractRows, RowAccess, RowBlock
from ._rows.law import Batch, RowDraws
from ._rows.manifest import Column, RowManifest, RowStoreError
from ._rows.opening import open_rows as open
from ._rows.resident import ResidentRows, resident
from ._rows.sharded import ShardedRows

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
