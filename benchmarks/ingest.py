"""The speed of `tallmc.ingest` relative to that at which pyarrow alone reads the same Parquet.

A pass over the rows of the store is compared with one over the Parquet file in place.

Both are timed in turn in one process, best of several rounds, with the files in the page cache.
Processor seconds are given as well: they do not depend on what else the machine does.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import tallmc
from tallmc._core.supervision import core_count
from tallmc._ingestion.parquet_shards import parquet_shards
from tallmc._rows.shards import AbstractShards, NpyShards

from .report import print_table

N_ROWS, N_COLUMNS, ROUNDS = 4_000_000, 20, 3
_ROWS_PER_GROUP = 2**18


def write_table(path: Path, compression: str) -> None:
    """Normal float64 columns, which hardly compress, and a 0/1 response."""
    rng = np.random.default_rng(0)
    writer = None
    for first in range(0, N_ROWS, _ROWS_PER_GROUP):
        size = min(_ROWS_PER_GROUP, N_ROWS - first)
        columns = {f"x{j}": rng.normal(j, j + 1, size) for j in range(N_COLUMNS)}
        table = pa.table({**columns, "y": rng.integers(0, 2, size, np.int8)})
        writer = writer or parquet.ParquetWriter(path, table.schema, compression=compression)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def read(path: Path) -> None:
    """Read with pyarrow's own threads, one row group at a time, and keep nothing."""
    with parquet.ParquetFile(path) as opened:
        for number in range(opened.num_row_groups):
            opened.read_row_group(number)


def ingest(path: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    tallmc.ingest(path, folder, response="y", progress=False)


def read_rows(shards: AbstractShards) -> float:
    """Read every row once, as a pass does."""
    return sum(float(shards.array(n).sum()) for n in range(len(shards.manifest.shards)))


def seconds_of(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock and of all processors."""
    began = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began[0], time.process_time() - began[1]


def fastest(timed: Sequence[tuple[tuple[float, float], ...]]) -> list[tuple[float, ...]]:
    """The least seconds of each kind of call, by the clock and of all processors."""
    return [tuple(map(min, zip(*of_kind, strict=True))) for of_kind in zip(*timed, strict=True)]


def main() -> None:
    lines: list[tuple[str, ...]] = []
    for compression in ("zstd", "snappy"):
        with tempfile.TemporaryDirectory(dir=".") as name:
            path, store = Path(name) / "table.parquet", Path(name) / "rows"
            write_table(path, compression)
            timed = [
                (seconds_of(partial(read, path)), seconds_of(partial(ingest, path, store)))
                for _ in range(ROUNDS)
            ]
            in_place, mapped = parquet_shards([path], "y"), NpyShards(str(store))
            passes = [
                (seconds_of(partial(read_rows, mapped)), seconds_of(partial(read_rows, in_place)))
                for _ in range(ROUNDS)
            ]
        alone, ours = fastest(timed)
        stored, decoded = fastest(passes)
        lines.append(
            (
                compression,
                f"{alone[0]:.2f}",
                f"{ours[0]:.2f}",
                f"{alone[0] / ours[0]:.2f}",
                f"{alone[1]:.1f}, {ours[1]:.1f}",
                "≥ 0.5",
                f"{stored[0]:.2f}, {decoded[0]:.2f}",
            )
        )
    print_table(
        f"Ingest: {N_ROWS:,} rows, {N_COLUMNS} float64 columns and a response, "
        f"{core_count()} cores",
        (
            "Parquet",
            "pyarrow reads, s",
            "ingest, s",
            "speed ratio",
            "processor s",
            "target",
            "pass: store, in place",
        ),
        lines,
    )
