"""Read whatever a user calls a table: files, folders, standard input and objects in memory."""

from __future__ import annotations

import dataclasses
import re
import sys
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, feather, ipc, parquet, types

from .._core.errors import InvalidInput
from .._ingestion.errors import (
    TableError,
    check_any_rows,
    check_names,
    other_columns,
    some,
    unreadable,
)
from .._ingestion.readers import MATRIX, NAMES, FileSource, names_of_matrix, parsed_csv, table_files
from .._ingestion.values import ColumnValues, check_lengths, from_arrow, from_numpy, is_text
from .._rows.manifest import MANIFEST


# A table in memory: columns of numbers, booleans and text by name, and the rows of new tables.
#
# Columns are `ColumnValues`: numbers with NaN where they are missing, or codes of text with −1
# where it is missing. The levels of text are sorted, unless the source declares an order (pandas
# categories, Arrow's ordered dictionaries).
@dataclasses.dataclass(frozen=True)
class Table:
    """Columns of equal length by name."""

    columns: Mapping[str, ColumnValues]
    description: str
    notes: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def column(self, name: str, parameter: str) -> ColumnValues:
        """The column `name`; an error about `parameter` lists the columns if there is none."""
        if name not in self.columns:
            cure = f"The columns are: {some(self.columns)}."
            raise TableError(parameter, f"name a column of {self.description}", name, cure)
        return self.columns[name]

    def without(self, names: Iterable[str]) -> Table:
        left_out = {names} if isinstance(names, str) else set(names)
        for name in sorted(left_out):
            self.column(name, "--exclude (exclude)")
        kept = {name: values for name, values in self.columns.items() if name not in left_out}
        return dataclasses.replace(self, columns=kept)

    def rows(self, which: np.ndarray | slice) -> Table:
        """Some of the rows: a mask, numbers of rows or a slice."""
        kept = {name: values[which] for name, values in self.columns.items()}
        return dataclasses.replace(self, columns=kept)

    def with_column(self, name: str, values: ColumnValues) -> Table:
        return dataclasses.replace(self, columns={**self.columns, name: values})


def make_table(
    columns: Iterable[tuple[Any, ColumnValues]], description: str, notes: Iterable[str] = ()
) -> Table:
    """A table from its columns. Spaces around names are removed; names and lengths are checked."""
    pairs = [(str(name).strip(), values) for name, values in columns]
    check_names(description, [name for name, _ in pairs])
    check_lengths({name: len(values) for name, values in pairs})
    return Table(dict(pairs), description, tuple(notes))


# Tables that are in memory: data frames, Arrow tables, mappings of arrays, lists of dicts.

_RULE = (
    "be a path, a data frame (pandas, polars, pyarrow), a dict of 1-D arrays, a list of dicts or "
    "a structured array"
)


def table_of(data: Any) -> Table:
    """The table that an object in memory holds."""
    pandas = sys.modules.get("pandas")
    kind = type(data).__name__
    if isinstance(data, Table):
        return data
    if isinstance(data, Mapping):
        return table_of_columns(data.items(), kind)
    if isinstance(data, np.ndarray) and data.dtype.names is not None:
        pairs = ((name, data[name]) for name in data.dtype.names)
        return table_of_columns(pairs, "structured array")
    if isinstance(data, list | tuple) and data and all(isinstance(row, Mapping) for row in data):
        keys = dict.fromkeys(name for row in data for name in row)
        columns = ((name, [row.get(name) for row in data]) for name in keys)
        return table_of_columns(columns, "list of dicts")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        names = [str(name).strip() for name in data.columns]
        check_names("DataFrame", names)  # before a name that occurs twice gives two columns
        pairs = ((name, data.iloc[:, place]) for place, name in enumerate(names))
        return table_of_columns(pairs, "DataFrame")
    is_stream = hasattr(data, "__arrow_c_stream__")
    if is_stream or hasattr(data, "__arrow_c_array__"):
        try:
            table = pa.table(data) if is_stream else pa.Table.from_batches([pa.record_batch(data)])
        except (pa.ArrowException, TypeError, ValueError):
            cure = "Put a single column into a data frame."
            raise TableError("TABLE", _RULE, kind, cure) from None
        return from_arrow_table(table, kind)
    raise TableError("TABLE", _RULE, kind, _frame_cure(data))


def table_of_columns(pairs: Iterable[tuple[Any, Any]], description: str) -> Table:
    columns = [(str(name), _column_of(str(name), values, description)) for name, values in pairs]
    return make_table(columns, description)


def from_arrow_table(table: pa.Table, description: str, notes: Iterable[str] = ()) -> Table:
    columns = map(column_of_arrow, table.columns)
    return make_table(zip(table.column_names, columns, strict=True), description, notes)


def column_of_arrow(
    values: pa.Array | pa.ChunkedArray, *, keep_order: bool = False
) -> ColumnValues:
    """A column from Arrow. Dictionaries are categories, also those of numbers; levels are sorted.

    The order of levels is kept if `keep_order`, or if it is part of the type.
    """
    ordered = keep_order
    if types.is_dictionary(values.type):
        ordered = ordered or values.type.ordered
        if not is_text(values.type.value_type):
            values, ordered = _as_text(values, keep_order=ordered), True
    found = from_arrow(values)
    if ordered or found.kind != "text":
        return found
    order = sorted(range(len(found.levels)), key=found.levels.__getitem__)
    levels = tuple(found.levels[place] for place in order)
    return ColumnValues("text", _inverse(order)[found.numbers], levels)


def _inverse(order: Sequence[int]) -> np.ndarray:
    """New codes by old codes; the code −1 of missing values stays."""
    codes = np.full(len(order) + 1, -1, np.int64)
    codes[np.asarray(order, np.int64)] = np.arange(len(order))
    return codes


def _as_text(values: pa.Array | pa.ChunkedArray, *, keep_order: bool) -> pa.DictionaryArray:
    """A dictionary of numbers, booleans or dates as one of text."""
    if isinstance(values, pa.ChunkedArray):
        values = values.unify_dictionaries().combine_chunks()
    levels = values.dictionary.to_pylist()
    order = list(range(len(levels)))
    order = order if keep_order else sorted(order, key=levels.__getitem__)
    codes = values.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    new = _inverse(order)[codes]
    names = pa.array([str(levels[place]) for place in order], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(new, mask=new < 0), names)


def _column_of(name: str, values: Any, description: str) -> ColumnValues:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return column_of_arrow(values)
    if hasattr(values, "dtype") and not isinstance(values.dtype, np.dtype):  # series of frames
        return _converted(name, values)
    array = np.asarray(values)
    if array.ndim != 1:
        found = f"{name} of shape {array.shape}"
        raise TableError(f"TABLE ({description})", "hold one 1-D array per column", found)
    return from_numpy(array) if array.dtype.kind not in "OT" else _converted(name, array)


def _converted(name: str, values: Any) -> ColumnValues:
    """A column from values that Arrow understands: text, objects, categories, nullable numbers."""
    try:
        found = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(error.args[0] if error.args else error).split())
        cure = "Convert it to numbers or to text first, or leave it out."
        raise TableError(f"column {name!r}", "hold values of one kind", reason, cure) from None
    categories = getattr(getattr(values, "dtype", None), "categories", None)
    is_pandas = type(values).__module__.partition(".")[0] == "pandas"
    return column_of_arrow(found, keep_order=is_pandas and categories is not None)


def _frame_cure(data: Any) -> str:
    if hasattr(data, "collect"):
        return "Read it first: table.collect()."
    if hasattr(data, "tocsr"):
        return (
            "A design of a few hundred columns fits into memory: "
            "pandas.DataFrame.sparse.from_spmatrix(x, columns=[...]).sparse.to_dense()."
        )
    rows = isinstance(data, list | tuple) or (isinstance(data, np.ndarray) and data.ndim == 2)
    return "Give the columns names: pandas.DataFrame(rows, columns=[...])." if rows else ""


# Read CSV text whose separator, encoding and decimal sign are not known.
#
# The separator is the one of `, ; tab |` that occurs most often in the header. Text that is not
# UTF-8 is read as Windows-1252, which contains Latin-1. Decimal commas are understood where commas
# do not separate columns.

STDIN = "-"
_SEPARATORS = ",;\t|"
_NAMES = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";"}
_OTHER_ENCODING = "cp1252"
_HEAD = 2**16
_CHECKED = 1000
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)?([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})*")


def read_csv(path: Path, separator: str | None) -> tuple[pa.Table, list[str]]:
    """The table in a file (`-`: standard input), and notes on how it was read."""
    notes: list[str] = []
    try:
        if str(path) == STDIN:
            content = pa.py_buffer(sys.stdin.buffer.read())
        elif path.suffix.lower() == ".gz":
            content = pa.input_stream(str(path), compression="gzip").read_buffer()
        else:  # an empty file cannot be mapped
            is_empty = not path.stat().st_size
            content = pa.py_buffer(b"") if is_empty else pa.memory_map(str(path)).read_buffer()
        head = content[:_HEAD].to_pybytes() if content.size else b""
        if not head.strip():
            raise unreadable(path, "CSV", "it is empty")
        encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
        header = head.decode(encoding, "replace").lstrip("\ufeff\r\n").splitlines()[0]
        separator = _separator(header, separator, path)
        table = _parsed(content, separator, encoding)
        if not _is_decoded(table):
            table = _parsed(content, separator, _OTHER_ENCODING)
            notes.append(f"{path.name} is not UTF-8: read as Windows-1252 (Latin-1)")
        if separator != "," and (columns := _with_decimal_commas(table)):
            table = _parsed(content, separator, encoding, decimal=",")
            notes.append(f"decimal commas in {', '.join(columns)}")
    except UnicodeError as error:
        raise unreadable(path, "CSV", error, "Save it as UTF-8.") from None
    except (pa.ArrowException, OSError, EOFError) as error:
        cure = "Name the separator with --separator (separator)."
        raise unreadable(path, "CSV", error, cure if "columns" in str(error) else "") from None
    return table, notes


def _separator(header: str, given: str | None, path: Path) -> str:
    if given is not None:
        chosen = _NAMES.get(given, given)
        if len(chosen) != 1:
            raise InvalidInput("--separator (separator)", "be one character", given)
        return chosen
    unquoted = re.sub(r'"[^"]*"', "", header)
    ending = "".join(path.suffixes).lower()
    first = "\t" if ".tsv" in ending else ","
    candidates = first + _SEPARATORS.replace(first, "") + (" " if ".txt" in ending else "")
    return max(candidates, key=unquoted.count)


def _parsed(content: pa.Buffer, separator: str, encoding: str, decimal: str = ".") -> pa.Table:
    convert = csv.ConvertOptions(
        strings_can_be_null=True, quoted_strings_can_be_null=False, decimal_point=decimal
    )

    def parse(*, use_threads: bool) -> pa.Table:
        # Lines within quotes are slow to parse, so they are allowed in the second attempt only.
        lines = csv.ParseOptions(delimiter=separator, newlines_in_values=not use_threads)
        return csv.read_csv(
            pa.BufferReader(content),
            read_options=csv.ReadOptions(encoding=encoding, use_threads=use_threads),
            parse_options=lines,
            convert_options=convert,
        )

    return parsed_csv(parse, -1)


def _is_decoded(table: pa.Table) -> bool:
    """Whether names and text are UTF-8; Arrow makes other text binary."""
    try:
        return bool(table.column_names) and not any(map(types.is_binary, table.schema.types))
    except UnicodeDecodeError:
        return False


def _with_decimal_commas(table: pa.Table) -> list[str]:
    """Columns of text such as "1,5", of which not all look like whole thousands."""
    found = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if types.is_string(column.type):
            texts = column.drop_null()[:_CHECKED].to_pylist()
            decimal = all(_DECIMAL_COMMA.fullmatch(text.strip()) for text in texts)
            if texts and decimal and not all(_THOUSANDS.fullmatch(text) for text in texts):
                found.append(name)
    return found


_CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
_PARQUET, _ARROW, _NPZ = (".parquet", ".pq"), (".arrow", ".feather", ".ipc"), ".npz"


def read_table(source: Any, *, exclude: Iterable[str] = (), separator: str | None = None) -> Table:
    """Read a path, a table in memory, or CSV on standard input ("-"). See `tallmc.fit`."""
    is_path = isinstance(source, str | Path)
    table = _read_path(Path(source), separator) if is_path else table_of(source)
    check_any_rows(table.n_rows, table.description)
    return table.without(exclude)


def _read_path(path: Path, separator: str | None) -> Table:
    if str(path) == STDIN:
        table, notes = read_csv(path, separator)
        return from_arrow_table(table, "standard input", notes)
    if path.is_file():
        if path.name.lower().endswith(_NPZ):
            return table_of_npz(path)
        table, notes = _read_file(path, separator)
        return from_arrow_table(table, path.name, notes)
    if (path / MANIFEST).is_file():
        cure = f"Open it with tallmc.rows.open({str(path)!r})."
        raise TableError("TABLE", "be a table", f"{path}, a row store", cure)
    if path.is_dir() or set("*?[") & set(str(path)):
        return _read_files(path, separator)
    cure = "Check the path. Relative paths start at the current folder."
    raise TableError("TABLE", "be a file or folder", f"{path}, which does not exist", cure)


def _read_file(path: Path, separator: str | None) -> tuple[pa.Table, list[str]]:
    """A table of Arrow, and notes on how it was read."""
    name = path.name.lower()
    if name.endswith(_CSV):
        return read_csv(path, separator)
    if not name.endswith((*_PARQUET, *_ARROW)):
        known = ", ".join((*_CSV, *_PARQUET, *_ARROW, _NPZ))
        cure = "Convert the file, e.g. with pandas: table.to_parquet(...)."
        raise TableError("TABLE", f"end in one of {known}", path.name, cure)
    kind = "Parquet" if name.endswith(_PARQUET) else "Arrow"
    try:
        if kind == "Parquet":
            return parquet.ParquetFile(path).read(), []
        try:
            return feather.read_table(path), []
        except pa.ArrowInvalid:  # a stream, not a file
            with pa.memory_map(str(path)) as source:
                return ipc.open_stream(source).read_all(), []
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, kind, error) from None


def _read_files(path: Path, separator: str | None) -> Table:
    """The rows of several files, which have the same columns."""
    files = table_files([path])
    number_keys = FileSource(tuple(files)).number_keys
    tables, notes = [], []
    for file in files:
        if file.suffix == _NPZ:
            raise TableError("TABLE", "be one .npz file, not several", str(path), "Name one file.")
        table, said = _read_file(file.path, separator)
        check_names(file.name, [*table.column_names, *(key for key, _ in file.partition)])
        notes += said
        for key, value in file.partition:
            number = None if value is None else int(value) if key in number_keys else value
            type_ = pa.int64() if key in number_keys else pa.string()
            table = table.append_column(key, pa.repeat(pa.scalar(number, type_), table.num_rows))
        tables.append(table)
        here, first = table.column_names, tables[0].column_names
        if set(here) != set(first):
            lacking = [name for name in first if name not in here]
            further = [name for name in here if name not in first]
            raise other_columns(lacking, further, file.name, files[0].name)
    try:
        whole = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        cure = "Convert them to the same types first."
        raise TableError("TABLE", "have one kind of values per column", str(error), cure) from None
    return from_arrow_table(whole, path.name, notes)


def table_of_npz(path: Path) -> Table:
    """1-D arrays by name, and a matrix X whose columns `feature_names` names (or x1, x2, …)."""
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
        texts = None if given is None else given.astype(str).tolist()
        columns = list(zip(names_of_matrix(texts, matrix.shape[1]), matrix.T, strict=True))
    columns += arrays.items()
    wrong = [f"{name} of shape {values.shape}" for name, values in columns if values.ndim != 1]
    if wrong:
        raise TableError("TABLE", "hold one 1-D array per column, or a 2-D X with y", some(wrong))
    return table_of_columns(columns, path.name)
