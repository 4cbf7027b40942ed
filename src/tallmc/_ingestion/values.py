"""Batches of a table: numbers as arrays, text as codes of its levels.

A batch remembers the file and the row at which it begins, so that errors can name a row.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .errors import TableError, check_names, some

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["number", "boolean", "text", "missing", "other"]
ROWS_PER_BATCH = 2**17  # most rows of a batch; fewer if rows are wide
_BATCH_BYTES = 2**24
MAX_LEVELS = 100  # most levels of a column of text that nobody has named as a category
MAX_STORED_LEVELS = 2**20  # most levels whose codes a row store holds by default


@dataclasses.dataclass(frozen=True)
class ColumnValues:
    """The values of a column in a batch."""

    kind: Kind  # "missing" if all values are missing
    numbers: np.ndarray
    """The numbers, NaN where they are missing; the codes of text, −1 where it is missing."""
    levels: tuple[str, ...] = ()  # the text of each code
    order: tuple[str, ...] = ()  # all levels of a category that has an order
    described: str = ""  # the type of values that are neither numbers nor text

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: slice | np.ndarray) -> ColumnValues:
        return dataclasses.replace(self, numbers=self.numbers[rows])


MISSING_LEVEL = "(missing)"


def missing_name(column: str) -> str:
    """The name of the column that is 1 where a number is missing."""
    return f"{column}_missing"


def missing(column: ColumnValues) -> np.ndarray:
    """Which values are missing."""
    if column.kind == "text":
        return column.numbers < 0
    if column.numbers.dtype.kind == "f":
        return np.isnan(column.numbers)
    return np.zeros(len(column), bool)


@dataclasses.dataclass(frozen=True)
class TableBatch:
    """Some consecutive rows of a table."""

    origin: str  # the name of the file, or of the batch
    first_row: int  # the number of rows that come before it in `origin`
    columns: Mapping[str, ColumnValues]
    kept: np.ndarray | None = None  # the numbers of the rows, from `first_row` on, if not all

    def __len__(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values()), ()))

    def place(self, row: int) -> str:
        """A row in a message; rows of a file count from 1."""
        number = row if self.kept is None else int(self.kept[row])
        return f"{self.origin}, row {self.first_row + number + 1}"

    def without(self, n_rows: int) -> TableBatch:
        """The batch without its first `n_rows` rows."""
        rest = {name: values[n_rows:] for name, values in self.columns.items()}
        return TableBatch(self.origin, self.first_row + n_rows, rest)


def without_missing(
    batches: Iterable[TableBatch], first_row: int = 0, only: str | None = None
) -> Iterator[TableBatch]:
    """The rows without missing values, but for the first ones; a batch may be empty.

    With `only`, the rows with a value in this column.
    """
    for batch in batches:
        needed = {name: values for name, values in batch.columns.items() if only in (None, name)}
        found = [missing(values) for values in needed.values()]
        absent = np.any([np.zeros(len(batch), bool), *found], axis=0)
        kept = np.flatnonzero(~absent)
        first_row, skipped = max(first_row - len(kept), 0), min(first_row, len(kept))
        kept = kept[skipped:]
        rows = {name: values[kept] for name, values in batch.columns.items()}
        yield TableBatch(batch.origin, batch.first_row, rows, kept)


def rows_per_batch(bytes_per_row: float) -> int:
    return max(1, min(ROWS_PER_BATCH, int(_BATCH_BYTES / max(bytes_per_row, 1.0))))


def batches_of(data: Any, origin: str, first_row: int = 0) -> Iterator[TableBatch]:
    """Batches of a mapping of 1-D arrays, or of a data frame or table of Arrow's protocol."""
    if isinstance(data, Mapping):
        columns = {str(name): np.asarray(values) for name, values in data.items()}
        check_names(origin, columns)
        wrong = {name: values.shape for name, values in columns.items() if values.ndim != 1}
        if wrong:
            found = some(f"{name} of shape {shape}" for name, shape in wrong.items())
            raise TableError(origin, "hold one 1-D array per column", found)
        check_lengths({name: len(values) for name, values in columns.items()})
        n_rows = len(next(iter(columns.values()), ()))
        size = rows_per_batch(sum(values.itemsize for values in columns.values()))
        pieces: Iterator[Mapping[str, Any]] = (
            {name: values[first : first + size] for name, values in columns.items()}
            for first in range(0, max(n_rows, 1), size)
        )
        convert: Callable[[Any], ColumnValues] = from_numpy
    else:
        table = _as_arrow(data, origin)
        check_names(origin, table.column_names)
        size = rows_per_batch(table.nbytes / max(table.num_rows, 1))
        pieces = (
            dict(zip(table.column_names, table.slice(first, size).columns, strict=True))
            for first in range(0, max(table.num_rows, 1), size)
        )
        pandas = sys.modules.get("pandas")
        is_pandas = pandas is not None and isinstance(data, pandas.DataFrame)
        convert = functools.partial(from_arrow, keep_order=is_pandas)
    for piece in pieces:
        batch = TableBatch(origin, first_row, {name: convert(piece[name]) for name in piece})
        yield batch
        first_row += len(batch)


def is_table(data: Any) -> bool:
    """Whether `batches_of` accepts it."""
    protocols = ("__arrow_c_stream__", "__arrow_c_array__")
    return isinstance(data, Mapping) or any(hasattr(data, name) for name in protocols)


def from_numpy(values: np.ndarray) -> ColumnValues:
    if values.dtype.kind == "b":
        return ColumnValues("boolean", values)
    if values.dtype.kind in "iuf":
        return ColumnValues("number", values)
    if values.dtype.kind == "O":
        missing = np.array([value is None or value != value for value in values], bool)
        present = values[~missing]
        if not len(present):
            return _all_missing(len(values))
        if all(isinstance(value, str) for value in present):
            levels, codes = np.unique(present.astype(str), return_inverse=True)
            filled = np.full(len(values), -1)
            filled[~missing] = codes
            return ColumnValues("text", filled, tuple(levels.tolist()))
        if all(isinstance(value, bool | np.bool_ | int | float | np.number) for value in present):
            whole = np.where(missing, np.nan, values).astype(np.float64)
            booleans = all(isinstance(value, bool | np.bool_) for value in present)
            return ColumnValues("boolean" if booleans else "number", whole)
    if values.dtype.kind in "UT":
        found = _letters_as_codes(values) if values.dtype.kind == "U" else None
        levels, codes = np.unique(values, return_inverse=True) if found is None else found
        return ColumnValues("text", codes, tuple(levels.tolist()))
    return ColumnValues("other", np.zeros(len(values)), described=str(values.dtype))


def _letters_as_codes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """What np.unique returns, which sorts all rows: ten times as slow with few levels.

    Rows are told apart by hashes of their letters; None if two levels have the same.
    """
    import pandas

    width = values.dtype.itemsize // 4
    if not width or not len(values):
        return None
    letters = np.ascontiguousarray(values).view(np.uint32).reshape(len(values), width)
    kind = np.min_scalar_type(letters.max())
    per_word = 8 // kind.itemsize
    padded = np.zeros((len(values), -(-width // per_word) * per_word), kind)
    padded[:, :width] = letters
    words = np.ascontiguousarray(padded.view(np.uint64).T)
    hashes = np.zeros(len(values), np.uint64)
    for word in words:
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes += word
    codes, different = pandas.factorize(hashes)
    example = np.empty(len(different), np.int64)
    example[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    if not all(np.array_equal(word, word[example][codes]) for word in words):
        return None
    levels, order = np.unique(values[example], return_inverse=True)
    return levels, order[codes]


def from_arrow(values: pa.Array | pa.ChunkedArray, *, keep_order: bool = False) -> ColumnValues:
    """A column from Arrow; categories have an order if `keep_order` or if their type has one."""
    import pyarrow as pa
    from pyarrow import types

    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    kind = values.type
    ordered = types.is_dictionary(kind) and (keep_order or kind.ordered)
    if types.is_dictionary(kind) and not is_text(kind.value_type):
        values, kind = values.cast(kind.value_type), kind.value_type
    if types.is_null(kind):
        return _all_missing(len(values))
    if is_text(kind):
        values = values.dictionary_encode()
    if types.is_dictionary(values.type):
        levels = tuple(values.dictionary.to_pylist())
        codes = values.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        order = tuple(level for level in levels if level is not None) if ordered else ()
        return ColumnValues("text", *_distinct(codes, levels), order=order)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        if values.null_count:
            values = values.cast(pa.float64(), safe=False)
        numbers = values.to_numpy(zero_copy_only=False)
        return ColumnValues("boolean" if types.is_boolean(kind) else "number", numbers)
    if types.is_decimal(kind):
        return ColumnValues("number", values.cast(pa.float64()).to_numpy(zero_copy_only=False))
    return ColumnValues("other", np.zeros(len(values)), described=str(kind))


def is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _distinct(
    codes: np.ndarray, levels: tuple[str | None, ...]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes of levels that occur, are different and are not missing."""
    counts = np.bincount(codes[codes >= 0], minlength=len(levels))
    if counts.all() and len(set(levels)) == len(levels) and None not in levels:
        return codes, levels  # type: ignore[return-value]
    used = [level for level, n in zip(levels, counts, strict=True) if n and level is not None]
    places = {level: place for place, level in enumerate(dict.fromkeys(used))}
    lookup = np.array([*(places.get(level, -1) for level in levels), -1], np.int64)  # type: ignore[arg-type]
    return lookup[codes], tuple(places)


def _all_missing(n_rows: int) -> ColumnValues:
    return ColumnValues("missing", np.full(n_rows, np.nan))


def _as_arrow(data: Any, origin: str) -> pa.Table:
    import pyarrow as pa

    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return pa.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    rule = "be a mapping of 1-D arrays, a data frame or a table of Arrow"
    raise TableError(origin, rule, type(data).__name__)


def check_lengths(lengths: Mapping[str, int]) -> None:
    if len(set(lengths.values())) > 1:
        found = some(f"{name}: {length}" for name, length in lengths.items())
        raise TableError("TABLE", "have columns of equal length", f"lengths {found}")
