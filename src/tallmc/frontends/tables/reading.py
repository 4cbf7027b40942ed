"""Read whatever a user calls a table: files, folders, standard input and objects in memory."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ingestion.errors import TableError, check_any_rows, check_names, some, unreadable
from ...ingestion.files import TableFile, table_files
from ...ingestion.npz import MATRIX, NAMES
from ...rows.manifest import MANIFEST
from .csv_files import STDIN, read_csv
from .frames import from_arrow_table, table_of, table_of_columns
from .table import Table

if TYPE_CHECKING:
    import pyarrow as pa

_CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
_PARQUET, _ARROW, _NPZ = (".parquet", ".pq"), (".arrow", ".feather", ".ipc"), (".npz",)


def read_table(source: Any, *, exclude: Iterable[str] = (), separator: str | None = None) -> Table:
    """Read a table.

    **Arguments:**

    - `source`: a path (.csv, .tsv and .txt, also with .gz; .parquet, .feather, .arrow, .npz; a
      folder or pattern of such files, with Hive partitions; "-" for CSV on standard input), a data
      frame of pandas or polars, a table of Arrow, a dict of arrays, a list of dicts or a
      structured array.
    - `exclude`: columns to leave out.
    - `separator`: the character between the columns of CSV files; detected if None.

    **Returns:** the `Table`. Spaces around names are removed.

    **Raises:** `TableError`, with the cure, if there is no such table or it has no rows.

    >>> table = read_table({"id": [7, 8, 9], " age ": [20, None, 40]}, exclude=["id"])
    >>> table.n_rows, list(table.columns)
    (3, ['age'])
    """
    if isinstance(source, str | Path):
        table = _read_path(Path(source), separator)
    else:
        table = table_of(source)
    check_any_rows(table.n_rows, table.description)
    return table.without(exclude)


def _read_path(path: Path, separator: str | None) -> Table:
    if str(path) == STDIN:
        return from_arrow_table(*_csv(path, "standard input", separator))
    if path.is_file():
        return _read_file(path, separator)
    if (path / MANIFEST).is_file():
        cure = f"Open it with tallmc.rows.open({str(path)!r})."
        raise TableError("TABLE", "be a table", f"{path}, a row store", cure)
    if path.is_dir() or set("*?[") & set(str(path)):
        return _read_files(path, separator)
    cure = "Check the path. Relative paths start at the current folder."
    raise TableError("TABLE", "be a file or folder", f"{path}, which does not exist", cure)


def _read_file(path: Path, separator: str | None) -> Table:
    name = path.name.lower()
    if name.endswith(_NPZ):
        return table_of_npz(path)
    for endings, read in _readers(separator).items():
        if name.endswith(endings):
            return from_arrow_table(*read(path))
    known = ", ".join((*_CSV, *_PARQUET, *_ARROW, *_NPZ))
    cure = "Convert the file, e.g. with pandas: table.to_parquet(...)."
    raise TableError("TABLE", f"end in one of {known}", path.name, cure)


ArrowTable = tuple["pa.Table", str, list[str]]
"""A table of Arrow, the name of its file, and notes."""


def _readers(separator: str | None) -> dict[tuple[str, ...], Callable[[Path], ArrowTable]]:
    return {
        _CSV: lambda path: _csv(path, path.name, separator),
        _PARQUET: lambda path: _arrow(path, "Parquet", _parquet_table),
        _ARROW: lambda path: _arrow(path, "Arrow", _ipc_table),
    }


def _csv(path: Path, name: str, separator: str | None) -> ArrowTable:
    table, notes = read_csv(path, separator)
    return table, name, notes


def _arrow(path: Path, kind: str, read: Callable[[Path], pa.Table]) -> ArrowTable:
    import pyarrow as pa

    try:
        return read(path), path.name, []
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, kind, error) from None


def _parquet_table(path: Path) -> pa.Table:
    from pyarrow import parquet

    return parquet.ParquetFile(path).read()


def _ipc_table(path: Path) -> pa.Table:
    import pyarrow as pa
    from pyarrow import feather, ipc

    try:
        return feather.read_table(path)
    except pa.ArrowInvalid:
        with pa.memory_map(str(path)) as source:
            return ipc.open_stream(source).read_all()


def _read_files(path: Path, separator: str | None) -> Table:
    """The rows of several files, which have the same columns."""
    import pyarrow as pa

    files = table_files([path])
    number_keys = _number_keys(files)
    tables, notes = [], []
    for file in files:
        if file.suffix == ".npz":
            raise TableError("TABLE", "be one .npz file, not several", str(path), "Name one file.")
        readers = _readers(separator).items()
        read = next(read for endings, read in readers if file.suffix in endings)
        table, _, said = read(file.path)
        check_names(file.name, [*table.column_names, *(key for key, _ in file.partition)])
        notes += said
        tables.append(_with_partition(table, file, number_keys))
        _check_columns(tables[-1], tables[0], file.name, files[0].name)
    try:
        whole = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        cure = "Convert them to the same types first."
        raise TableError("TABLE", "have one kind of values per column", str(error), cure) from None
    return from_arrow_table(whole, path.name, notes)


def _number_keys(files: Iterable[TableFile]) -> set[str]:
    """Partition keys whose values are whole numbers in all files."""
    pairs = [pair for file in files for pair in file.partition]
    text = {key for key, value in pairs if value and not value.removeprefix("-").isdecimal()}
    return {key for key, _ in pairs} - text


def _with_partition(table: pa.Table, file: TableFile, number_keys: set[str]) -> pa.Table:
    import pyarrow as pa

    for key, value in file.partition:
        number = None if value is None else int(value) if key in number_keys else value
        kind = pa.int64() if key in number_keys else pa.string()
        table = table.append_column(key, pa.repeat(pa.scalar(number, kind), table.num_rows))
    return table


def _check_columns(table: pa.Table, first: pa.Table, name: str, first_name: str) -> None:
    lacking = [column for column in first.column_names if column not in table.column_names]
    further = [column for column in table.column_names if column not in first.column_names]
    if lacking or further:
        parts = [f"lacks {some(lacking)}"] * bool(lacking)
        parts += [f"also has {some(further)}"] * bool(further)
        found = f"{name}, which {' and '.join(parts)}"
        raise TableError("TABLE", f"have the columns of {first_name} in every file", found)


def table_of_npz(path: Path) -> Table:
    """The table in an archive: 1-D arrays by name, or a matrix X and 1-D arrays.

    The columns of X are named by `feature_names`, or x1, x2, ….
    """
    if not zipfile.is_zipfile(path):
        raise unreadable(path, ".npz", "not an archive of arrays", "Write it with numpy.savez.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise unreadable(path, ".npz", error) from None
    except ValueError as error:
        cure = "Pickles can run code; save numbers, not arrays of dtype object."
        raise unreadable(path, ".npz", error, cure) from None
    columns: list[tuple[str, np.ndarray]] = []
    matrix = arrays.get(MATRIX)
    if matrix is not None and matrix.ndim == 2:
        del arrays[MATRIX]
        given = arrays.pop(NAMES, None)
        numbered = [f"x{j}" for j in range(1, matrix.shape[1] + 1)]
        names = numbered if given is None else given.astype(str).tolist()
        if len(names) != matrix.shape[1]:
            found = f"{len(names)} names"
            raise TableError(NAMES, f"name each of the {matrix.shape[1]} columns of X", found)
        columns = list(zip(names, matrix.T, strict=True))
    columns += arrays.items()
    wrong = [f"{name} of shape {values.shape}" for name, values in columns if values.ndim != 1]
    if wrong:
        raise TableError("TABLE", "hold one 1-D array per column, or a 2-D X with y", some(wrong))
    return table_of_columns(columns, path.name)
