"""Rows whose columns have names: what models of other libraries read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput
from ..rows.base import AbstractRows
from ..rows.resident import ResidentRows, resident
from ..rows.sharded import ShardedRows


def named_rows(rows: Any) -> AbstractRows:
    """Rows from a dictionary of columns, a data frame, or rows of tallmc with named columns.

    **Arguments:**

    - `rows`: arrays, lists or pandas columns by name, all with one entry per row; a pandas data
      frame; or rows from `tallmc.rows` that show each row as a dictionary.

    **Returns:** rows that show each row as a dictionary.

    **Raises:** `InvalidInput` if there is no column, a column is not numeric, or the lengths of
    the columns differ.

    >>> named_rows({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]}).n_rows
    2
    """
    if isinstance(rows, AbstractRows):
        if not isinstance(rows.row_shapes, dict):
            cure = "Pass a dictionary of arrays, or rows.viewed(view) with such a view."
            rule = "show each row as a dictionary of columns"
            raise InvalidInput("rows", rule, type(rows.row_shapes).__name__, cure)
        return rows
    if not hasattr(rows, "keys"):
        rule = "be a dictionary of columns, or rows from tallmc.rows"
        raise InvalidInput("rows", rule, type(rows).__name__, 'Pass {"x": x, "y": y}.')
    columns = {name: check_numeric(f"rows[{name!r}]", rows[name]) for name in rows}
    if not columns or not all(isinstance(name, str) for name in columns):
        rule = "name at least one column, by strings"
        cure = "Data must be passed as rows, so that a step can read some of them."
        raise InvalidInput("rows", rule, list(columns), cure)
    lengths = {name: column.shape[0] if column.ndim else None for name, column in columns.items()}
    if len(set(lengths.values())) > 1 or None in lengths.values() or 0 in lengths.values():
        cure = "Pass what is the same for all rows as a keyword argument or as a constant."
        raise InvalidInput("rows", "have one common, positive length", f"lengths {lengths}", cure)
    return resident(columns)


def some_rows(rows: AbstractRows, count: int) -> dict[str, Array]:
    """`count` rows as arrays, evenly spaced over all rows or over the first shard."""
    if isinstance(rows, ResidentRows):
        return rows.take(jnp.asarray(_spaced(rows.n_rows, count)))
    assert isinstance(rows, ShardedRows), "the library has no other rows"
    lines = rows.shards.lines(0, _spaced(rows.shards.manifest.shards[0].n_rows, count))
    return jax.tree.map(jnp.asarray, rows.view(lines))


def block_shapes(
    row_shapes: dict[str, jax.ShapeDtypeStruct], count: int
) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes and dtypes of a block of `count` rows, from those of one row."""
    return {
        name: jax.ShapeDtypeStruct((count, *row.shape), row.dtype)
        for name, row in row_shapes.items()
    }


def _spaced(n_rows: int, count: int) -> np.ndarray:
    return np.linspace(0, n_rows - 1, count).astype(int)
