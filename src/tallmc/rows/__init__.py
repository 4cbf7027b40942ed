"""Rows: where the data are stored, and the four ways to read them."""

from .base import AbstractRows, RowAccess, RowBlock
from .batch import Batch, RowDraws
from .resident import ResidentRows, resident

__all__ = ["AbstractRows", "Batch", "ResidentRows", "RowAccess", "RowBlock", "RowDraws", "resident"]
