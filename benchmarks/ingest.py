"""The speed of `tallmc.ingest` relative to that at which pyarrow alone reads the same file.

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
from pyarrow import csv, parquet

import tallmc
from tallmc._core.supervision import core_count
from tallmc._ingestion.parquet_shards import parquet_shards
from tallmc._rows.shards import AbstractShards, NpyShards

from .report import print_table

N_ROWS, N_COLUMNS, ROUNDS = 4_000_000, 20, 3
_ROWS_PER_GROUP = 2**18


def write_table(path: Path, compression: str, n_rows: int = N_ROWS) -> None:
    """Normal float64 columns, which hardly compress, and a 0/1 response."""
    rng = np.random.default_rng(0)
    writer: Any = None
    for first in range(0, n_rows, _ROWS_PER_GROUP):
        size = min(_ROWS_PER_GROUP, n_rows - first)
        columns = {f"x{j}": rng.normal(j, j + 1, size) for j in range(N_COLUMNS)}
        table = pa.table({**columns, "y": rng.integers(0, 2, size, np.int8)})
        if writer is None and compression == "csv":
            writer = csv.CSVWriter(path, table.schema)
        writer = writer or parquet.ParquetWriter(path, table.schema, compression=compression)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def read(path: Path) -> None:
    """Read with pyarrow's own threads, Parquet one row group at a time, and keep nothing."""
    if path.suffix == ".csv":
        csv.read_csv(path)
        return
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
    for compression in ("zstd", "snappy", "csv"):
        with tempfile.TemporaryDirectory(dir=".") as name:
            is_csv = compression == "csv"
            path = Path(name) / ("table.csv" if is_csv else "table.parquet")
            store = Path(name) / "rows"
            write_table(path, compression, N_ROWS // 4 if is_csv else N_ROWS)
            timed = [
                (seconds_of(partial(read, path)), seconds_of(partial(ingest, path, store)))
                for _ in range(ROUNDS)
            ]
            passes: list[Any] = []
            if not is_csv:
                pair = NpyShards(str(store)), parquet_shards([path], "y")
                passes = [
                    tuple(seconds_of(partial(read_rows, rows)) for rows in pair)
                    for _ in range(ROUNDS)
                ]
        alone, ours = fastest(timed)
        lines.append(
            (
                compression,
                f"{alone[0]:.2f}",
                f"{ours[0]:.2f}",
                f"{alone[0] / ours[0]:.2f}",
                f"{alone[1]:.1f}, {ours[1]:.1f}",
                "≥ 0.6",
                ", ".join(f"{seconds[0]:.2f}" for seconds in fastest(passes)),
            )
        )
    print_table(
        f"Ingest: {N_ROWS:,} rows, a quarter of them as CSV, {N_COLUMNS} float64 columns and a "
        f"response, {core_count()} cores",
        (
            "file",
            "pyarrow reads, s",
            "ingest, s",
            "speed ratio",
            "processor s",
            "target",
            "pass: store, in place",
        ),
        lines,
    )
