"""New rows from users: checked, and in the form that a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from ..core.arrays import check_numeric, to_floats
from ..core.errors import InvalidInput
from ..rows.base import RowBlock
from ..rows.sharded import ShardedRows
from .design import check_per_row, named_columns
from .observations import GroupedObservations, Observations, RegressionRows


def regression_rows(
    new_rows: Any,
    n_columns: int,
    names: Sequence[str] | None,
    dtype: Any,
    *,
    response: bool = False,
    offset: ArrayLike | None = None,
    trials: ArrayLike | None = None,
) -> RegressionRows:
    """Rows of a regression from a design matrix.

    **Arguments:**

    - `new_rows`: a matrix, a data frame, a pair of one of these and the responses, or rows of a
      posterior (`posterior.data`).
    - `n_columns`: the number of columns of the model.
    - `names`: the names of these columns, if they are known.
    - `dtype`: the precision of the model.
    - `response`: whether responses are needed. Rows without responses get NaN.
    - `offset`: a number per row that is added to its predictor.
    - `trials`: the number of trials per row.
    """
    if isinstance(new_rows, (Observations, GroupedObservations)):
        if offset is not None or trials is not None:
            raise InvalidInput("offset and trials", "be left out with rows of a posterior", "both")
        _check_n_columns(new_rows.x.shape[-1], n_columns)
        return new_rows
    if isinstance(new_rows, ShardedRows):
        cure = "Pass some of them: rows.view(rows.lines(numbers))."
        raise InvalidInput("new rows", "be in memory", "rows of a row store", cure)
    has_response = isinstance(new_rows, tuple) and len(new_rows) == 2
    if response and not has_response:
        found = type(new_rows).__name__
        raise InvalidInput("new rows", "be a pair (X, y) of columns and responses", found)
    matrix, y = new_rows if has_response else (new_rows, None)
    x = _design(matrix, n_columns, names, dtype)
    return Observations(
        x,
        _missing(x) if y is None else check_per_row("y", y, x),
        None if offset is None else check_per_row("offset", offset, x),
        None if trials is None else check_per_row("trials", trials, x, positive=True),
    )


def _design(
    matrix: Any, n_columns: int, names: Sequence[str] | None, dtype: Any
) -> Float[Array, "n d"]:
    """The columns of the model, by name if both sides have names."""
    found, values = named_columns(matrix)
    if found is not None and names is not None:
        missing = [name for name in names if name not in found]
        unknown = [name for name in found if name not in names]
        if missing or unknown:
            what = f"no column {missing[0]!r}" if missing else f"the column {unknown[0]!r}"
            cure = f"The columns are: {', '.join(names[:20])}{', …' if len(names) > 20 else ''}."
            raise InvalidInput("new rows", "have the columns of the fit, and no others", what, cure)
        values = values[:, [found.index(name) for name in names]]
    x = to_floats("new rows", values, dtype)
    if x.ndim != 2 or not x.shape[0]:
        raise InvalidInput("new rows", "be a matrix with at least one row", f"shape {x.shape}")
    _check_n_columns(x.shape[1], n_columns)
    finite = np.isfinite(np.asarray(x)).all(axis=1)
    if not finite.all():
        found_bad = f"NaN or infinity in row {np.argmin(finite)}"
        raise InvalidInput("new rows", "be finite", found_bad, "Drop or impute such rows.")
    return x


def _missing(x: Float[Array, "n d"]) -> Float[Array, " n"]:
    return jnp.asarray(np.full(x.shape[0], np.nan, x.dtype))


def _check_n_columns(found: int, wanted: int) -> None:
    if found != wanted:
        cure = "The design matrix has its own intercept column, as in the fit."
        raise InvalidInput("new rows", f"have {wanted} columns, as in the fit", found, cure)


def rows_like(row_shapes: PyTree[jax.ShapeDtypeStruct], rows: PyTree[ArrayLike]) -> RowBlock:
    """Rows as arrays in the structure of a posterior's data, whose rows have these shapes.

    **Raises:** `InvalidInput` if structures, shapes or lengths do not match.
    """
    try:
        given = Observations(*rows) if isinstance(row_shapes, Observations) else rows
        columns = jax.tree.map(
            lambda like, column: jnp.asarray(check_numeric("rows", column), like.dtype),
            row_shapes,
            given,
        )
    except InvalidInput:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            "rows", "have the structure of the posterior's data", str(error)
        ) from None
    shapes, wanted = ([x.shape for x in jax.tree.leaves(tree)] for tree in (columns, row_shapes))
    lengths = {shape[:1] for shape in shapes}
    if [shape[1:] for shape in shapes] != wanted or len(lengths) != 1 or lengths <= {(), (0,)}:
        raise InvalidInput(
            "rows", f"be arrays of one length, whose rows have shapes {wanted}", f"shapes {shapes}"
        )
    return columns
