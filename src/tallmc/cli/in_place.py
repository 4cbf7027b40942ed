"""Rows of Parquet files that are read in place, and how much slower that is than a row store."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from ..ingestion.parquet_shards import ParquetShards, parquet_shards
from ..rows.sharded import ShardedRows
from ..rows.view import ByName


def parquet_in_place(path: Path, response: str, standardise: bool, intercept: bool) -> ShardedRows:
    """The rows of a Parquet file, or of a folder of them, decoded anew in every pass."""
    shards = parquet_shards([path], response, standardise=standardise, intercept=intercept)
    return ShardedRows(shards, ByName(shards.manifest.names))


def times_slower(shards: ParquetShards) -> float:
    """How many times longer it takes to decode rows than to read them from a row store.

    Measured with the first row group.
    """
    began = time.perf_counter()
    rows = shards.array(0)
    decoding = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "rows.npy"
        np.save(copy, rows, allow_pickle=False)
        began = time.perf_counter()
        np.load(copy, mmap_mode="r", allow_pickle=False).sum()
        reading = time.perf_counter() - began
    return decoding / reading
