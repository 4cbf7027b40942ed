"""The columns of rows as a matrix on the host, for schemes that compare rows with each other."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput
from ..models.posterior import AbstractPosterior
from ..rows.base import AbstractRows
from ..rows.blocks import block_rows


def columns_of(rows: AbstractRows, indices: Int[np.ndarray, " n"], cure: str) -> np.ndarray:
    """These rows as a matrix; `cure` tells the user what to do if they are not finite."""
    columns = [
        np.asarray(column, float) for column in jax.tree.leaves(rows.take(jnp.asarray(indices)))
    ]
    matrix = np.concatenate([column.reshape(len(indices), -1) for column in columns], axis=1)
    bad = ~np.isfinite(matrix).all(axis=1)
    if bad.any():
        value = f"NaN or infinity in row {indices[np.argmax(bad)]}"
        raise InvalidInput("data", "be finite to be compared", value, cure)
    return matrix


def index_blocks(n_rows: int, width: int) -> Iterator[Int[np.ndarray, " n"]]:
    """All row numbers, in blocks that fit into memory."""
    block = block_rows(width)
    return (np.arange(start, min(start + block, n_rows)) for start in range(0, n_rows, block))


def standardised_columns(rows: AbstractRows, cure: str) -> Float[np.ndarray, "N c"]:
    """All columns with mean zero and, unless they are constant, sd one."""
    blocks = index_blocks(rows.n_rows, rows.floats_per_row)
    matrix = np.concatenate([columns_of(rows, block, cure) for block in blocks])
    deviation = matrix.std(axis=0)
    return (matrix - matrix.mean(axis=0)) / np.where(deviation > 0, deviation, 1)


def checked_features(
    features: object, posterior: AbstractPosterior, cure: str
) -> Float[np.ndarray, "N r"]:
    """The features that a user gave, or the standardised columns of the rows."""
    if features is None:
        return standardised_columns(posterior.rows, cure)
    given = np.asarray(check_numeric("features", features), np.float64)
    if given.ndim != 2 or len(given) != posterior.n_rows or not np.isfinite(given).all():
        rule = f"be a matrix of finite numbers, one row per data row ({posterior.n_rows})"
        raise InvalidInput("features", rule, f"an array of shape {given.shape}")
    return given
