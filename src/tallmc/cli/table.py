"""Read a table: CSV and Parquet with pyarrow, .npz with NumPy without pickles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..ingestion.errors import (
    TableError,
    check_any_rows,
    check_names,
    check_response,
    unreadable,
)
from ..ingestion.npz import npz_pieces
from ..ingestion.values import check_lengths

if TYPE_CHECKING:
    import pyarrow as pa


@dataclasses.dataclass(frozen=True)
class InputTable:
    """Columns of equal length by name.

    Numeric columns with missing values are floats with NaN. Other columns are kept as read.
    """

    columns: dict[str, np.ndarray]
    response: str

    @property
    def n_rows(self) -> int:
        return len(self.columns[self.response])

    @property
    def features(self) -> dict[str, np.ndarray]:
        return {name: values for name, values in self.columns.items() if name != self.response}


def read_table(path: Path, response: str) -> InputTable:
    """Read the table at `path` and check names and lengths. `design` checks the values."""
    readers: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
        ".csv": _read_csv,
        ".parquet": _read_parquet,
        ".npz": lambda path: _read_npz(path, response),
    }
    if not path.is_file():
        problem = "a folder" if path.is_dir() else f"{path}, which does not exist"
        raise TableError(
            "TABLE",
            "be a file",
            problem,
            "Check the path. Relative paths start at the current folder.",
        )
    reader = readers.get(path.suffix.lower())
    if reader is None:
        kinds = ", ".join(readers)
        raise TableError(
            "TABLE",
            f"end in one of {kinds}",
            path.name,
            "Convert the file, e.g. with pandas: table.to_parquet(...).",
        )
    columns = reader(path)
    check_response(response, columns, path.name)
    check_lengths({name: len(values) for name, values in columns.items()})
    check_any_rows(len(columns[response]), path.name)
    return InputTable(columns, response)


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    import pyarrow as pa
    from pyarrow import csv

    try:
        table = csv.read_csv(path)
    except pa.ArrowException as error:
        raise unreadable(path, "CSV", error) from None
    return _columns_of(path, table)


def _read_parquet(path: Path) -> dict[str, np.ndarray]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(path).read()
    except pa.ArrowException as error:
        raise unreadable(path, "Parquet", error) from None
    return _columns_of(path, table)


def _columns_of(path: Path, table: pa.Table) -> dict[str, np.ndarray]:
    check_names(path.name, table.column_names)
    return {name: _as_numpy(table.column(name)) for name in table.column_names}


def _as_numpy(column: pa.ChunkedArray) -> np.ndarray:
    from pyarrow import float64, types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    plain = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    if types.is_null(kind) or types.is_decimal(kind) or (plain and column.null_count):
        column = column.cast(float64(), safe=False)
    return column.to_numpy(zero_copy_only=False)


def _read_npz(path: Path, response: str) -> dict[str, np.ndarray]:
    pieces = list(npz_pieces(path, response))
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
