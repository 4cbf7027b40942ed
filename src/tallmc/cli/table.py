"""Read a table: CSV and Parquet with pyarrow, .npz with NumPy without pickles."""

from __future__ import annotations

import dataclasses
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..core.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_NAMES = 20


class TableError(InvalidInput):
    """A table that cannot be read, or a column that cannot be used."""


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
    if response not in columns:
        cure = f"The columns are: {some(columns)}."
        raise TableError("--response", f"name a column of {path.name}", response, cure)
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        found = some(f"{name}: {length}" for name, length in lengths.items())
        raise TableError("TABLE", "have columns of equal length", f"lengths {found}")
    if lengths[response] == 0:
        raise TableError("TABLE", "have at least one row", f"{path.name} with none")
    return InputTable(columns, response)


def some(names: Iterable[str]) -> str:
    """List names in a message, at most 20 of them."""
    shown = list(names)
    more = f" and {len(shown) - _MAX_NAMES} more" if len(shown) > _MAX_NAMES else ""
    return ", ".join(shown[:_MAX_NAMES]) + more


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    import pyarrow as pa
    from pyarrow import csv

    try:
        table = csv.read_csv(path)
    except pa.ArrowException as error:
        raise _unreadable(path, "CSV", error) from None
    return _columns_of(path, table)


def _read_parquet(path: Path) -> dict[str, np.ndarray]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(path).read()
    except pa.ArrowException as error:
        raise _unreadable(path, "Parquet", error) from None
    return _columns_of(path, table)


def _columns_of(path: Path, table: pa.Table) -> dict[str, np.ndarray]:
    _check_names(path, table.column_names)
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
    if not zipfile.is_zipfile(path):
        raise _unreadable(path, ".npz", "not an archive of arrays", "Write it with numpy.savez.")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, zipfile.BadZipFile) as error:
        raise _unreadable(path, ".npz", error) from None
    except ValueError as error:
        raise _unreadable(
            path, ".npz", error, "Pickles can run code; save numbers, not arrays of dtype object."
        ) from None
    if "X" in arrays and arrays["X"].ndim == 2:
        return _matrix_columns(path, arrays, response)
    wrong = {name: values.shape for name, values in arrays.items() if values.ndim != 1}
    if wrong:
        found = some(f"{name} of shape {shape}" for name, shape in wrong.items())
        raise TableError("TABLE", "hold one 1-D array per column, or a 2-D X with y", found)
    return arrays


def _matrix_columns(
    path: Path, arrays: dict[str, np.ndarray], response: str
) -> dict[str, np.ndarray]:
    matrix = arrays["X"]
    if response not in arrays or arrays[response].ndim != 1:
        vectors = some(
            name for name, values in arrays.items() if values.ndim == 1 and name != "feature_names"
        )
        raise TableError(
            "--response",
            f"name a 1-D array of {path.name}",
            response,
            f"The 1-D arrays are: {vectors or 'none'}.",
        )
    extra = sorted(set(arrays) - {"X", response, "feature_names"})
    if extra:
        rule = f"hold X, {response} and at most feature_names when X is a matrix"
        raise TableError(
            "TABLE",
            rule,
            f"also {some(extra)}",
            "Remove them, or name the response with --response.",
        )
    d = matrix.shape[1]
    names = [str(name) for name in arrays.get("feature_names", [f"x{j}" for j in range(1, d + 1)])]
    if len(names) != d:
        raise TableError(
            "feature_names", f"name each of the {d} columns of X", f"{len(names)} names"
        )
    _check_names(path, [*names, response])
    return {name: matrix[:, j] for j, name in enumerate(names)} | {response: arrays[response]}


def _check_names(path: Path, names: list[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise TableError(
            "column names",
            f"be different in {path.name}",
            f"more than one {some(repeated)}",
            "Rename or drop them.",
        )
    empty = [number for number, name in enumerate(names, start=1) if not name.strip()]
    if empty:
        cure = "pandas writes row numbers this way: use table.to_csv(..., index=False)."
        raise TableError(
            "column names",
            f"not be empty in {path.name}",
            f"column {empty[0]} without a name",
            cure,
        )


def _unreadable(path: Path, kind: str, error: Exception | str, cure: str = "") -> TableError:
    reason = " ".join(str(error).split())
    return TableError("TABLE", f"be a readable {kind} file", f"{path.name}: {reason}", cure)
