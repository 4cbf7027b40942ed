"""Tables that are in memory: data frames, Arrow tables, mappings of arrays, lists of dicts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ingestion.errors import TableError, check_names
from ...ingestion.values import ColumnValues, from_arrow, from_numpy, is_text
from .table import Table, make_table

if TYPE_CHECKING:
    import pyarrow as pa

_RULE = (
    "be a path, a data frame (pandas, polars, pyarrow), a dict of 1-D arrays, a list of dicts or "
    "a structured array"
)
_NAME_THE_COLUMNS = "Give the columns names: pandas.DataFrame(rows, columns=[...])."


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
        return table_of_columns(_transposed(data).items(), "list of dicts")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return _from_pandas(data)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return from_arrow_table(_arrow_table(data, kind), kind)
    raise TableError("TABLE", _RULE, kind, _cure(data))


def table_of_columns(pairs: Iterable[tuple[Any, Any]], description: str) -> Table:
    """A table from names and arrays, lists or series."""
    columns = [(str(name), _column_of(str(name), values, description)) for name, values in pairs]
    return make_table(columns, description)


def from_arrow_table(table: pa.Table, description: str, notes: Iterable[str] = ()) -> Table:
    """A table from one of Arrow."""
    columns = map(column_of_arrow, table.columns)
    return make_table(zip(table.column_names, columns, strict=True), description, notes)


def column_of_arrow(
    values: pa.Array | pa.ChunkedArray, *, keep_order: bool = False
) -> ColumnValues:
    """A column from Arrow. Dictionaries are categories, also those of numbers; levels are sorted.

    The order of levels is kept if `keep_order`, or if it is part of the type.
    """
    from pyarrow import types

    ordered = keep_order
    if types.is_dictionary(values.type):
        ordered = ordered or values.type.ordered
        if not is_text(values.type.value_type):
            values, ordered = _as_text(values, keep_order=ordered), True
    found = from_arrow(values)
    return found if ordered or found.kind != "text" else sort_levels(found)


def sort_levels(column: ColumnValues) -> ColumnValues:
    """The same text with its levels sorted.

    >>> sorted_text = sort_levels(ColumnValues("text", np.array([0, 1, -1]), ("b", "a")))
    >>> sorted_text.levels, sorted_text.numbers.tolist()
    (('a', 'b'), [1, 0, -1])
    """
    order = sorted(range(len(column.levels)), key=column.levels.__getitem__)
    levels = tuple(column.levels[place] for place in order)
    return ColumnValues("text", _inverse(order)[column.numbers], levels)


def _inverse(order: Sequence[int]) -> np.ndarray:
    """New codes by old codes; the code −1 of missing values stays."""
    codes = np.full(len(order) + 1, -1, np.int64)
    codes[np.asarray(order, np.int64)] = np.arange(len(order))
    return codes


def _as_text(values: pa.Array | pa.ChunkedArray, *, keep_order: bool) -> pa.DictionaryArray:
    """A dictionary of numbers, booleans or dates as one of text."""
    import pyarrow as pa

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
    """A column from an array, a list or a series."""
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None and isinstance(values, pyarrow.Array | pyarrow.ChunkedArray):
        return column_of_arrow(values)
    if hasattr(values, "dtype") and not isinstance(values.dtype, np.dtype):  # series of frames
        return _converted(name, values)
    array = np.asarray(values)
    if array.ndim != 1:
        found = f"{name} of shape {array.shape}"
        raise TableError(f"TABLE ({description})", "hold one 1-D array per column", found)
    return from_numpy(array) if array.dtype.kind not in "OUT" else _converted(name, array)


def _converted(name: str, values: Any) -> ColumnValues:
    """A column from values that Arrow understands: text, objects, categories, nullable numbers."""
    import pyarrow as pa

    try:
        found = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(error.args[0] if error.args else error).split())
        cure = "Convert it to numbers or to text first, or leave it out."
        raise TableError(f"column {name!r}", "hold values of one kind", reason, cure) from None
    categories = getattr(getattr(values, "dtype", None), "categories", None)
    is_pandas = type(values).__module__.partition(".")[0] == "pandas"
    return column_of_arrow(found, keep_order=is_pandas and categories is not None)


def _from_pandas(frame: Any) -> Table:
    names = [str(name).strip() for name in frame.columns]
    check_names("DataFrame", names)
    pairs = ((name, frame.iloc[:, place]) for place, name in enumerate(names))
    return table_of_columns(pairs, "DataFrame")


def _arrow_table(data: Any, kind: str) -> pa.Table:
    import pyarrow as pa

    try:
        if hasattr(data, "__arrow_c_stream__"):
            return pa.table(data)
        return pa.Table.from_batches([pa.record_batch(data)])
    except (pa.ArrowException, TypeError, ValueError):
        raise TableError("TABLE", _RULE, kind, "Put a single column into a data frame.") from None


def _transposed(rows: Sequence[Mapping[Any, Any]]) -> dict[str, list[Any]]:
    """Columns from rows; a key that a row lacks is missing there."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {str(name): [row.get(name) for row in rows] for name in names}


def _cure(data: Any) -> str:
    if hasattr(data, "collect"):
        return "Read it first: table.collect()."
    if hasattr(data, "tocsr"):
        return (
            "A design of a few hundred columns fits into memory: "
            "pandas.DataFrame.sparse.from_spmatrix(x, columns=[...]).sparse.to_dense()."
        )
    rows = isinstance(data, list | tuple) or (isinstance(data, np.ndarray) and data.ndim == 2)
    return _NAME_THE_COLUMNS if rows else ""
