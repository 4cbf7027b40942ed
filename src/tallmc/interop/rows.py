"""Rows whose columns have names: what models of other libraries read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._core.arrays import check_numeric
from .._core.errors import InvalidInput
from .._rows.access import AbstractRows
from .._rows.resident import ResidentRows, resident
from .._rows.sharded import ShardedRows

# Log-likelihoods of blocks of rows, as models of other libraries compute them.
#
# Such a model sees all rows at once. Called with a block of rows instead, it returns one number per
# row. That number is the log-likelihood of the row only if it does not depend on the other rows of
# the block, which `check_block_likelihood` tries.

BlockLikelihood = Callable[[PyTree, dict[str, Array]], Float[Array, " n"]]
"""`log_likelihood(params, block)`, one number per row of the block."""


def check_block_likelihood(
    log_likelihood: BlockLikelihood, init: PyTree, block: dict[str, Array], cure: str
) -> None:
    """Raise unless each row of `block` has the log-likelihood that it has alone.

    The parameters are near `init`, not at it: at zero coefficients no row matters.
    """
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: leaf + jnp.asarray(0.1 * rng.normal(size=leaf.shape), leaf.dtype), init
    )

    @jax.jit
    def both(params: PyTree, block: dict[str, Array]) -> tuple[Array, Array]:
        each = jax.tree.map(lambda column: column[:, None], block)
        alone = jax.vmap(log_likelihood, in_axes=(None, 0))(params, each)
        return log_likelihood(params, block), alone[:, 0]

    together, alone = map(np.asarray, run_model(lambda: both(params, block), cure))
    tolerance = float(np.sqrt(np.finfo(together.dtype).eps))
    if not np.allclose(together, alone, rtol=tolerance, atol=tolerance, equal_nan=True):
        rule = "give each row a log-likelihood that depends on this row alone"
        raise InvalidInput("model", rule, "one that changes with the other rows", cure)


def run_model(call: Callable[[], Any], cure: str) -> Any:
    """What `call` returns. An error of the user's model becomes one line with the cure."""
    try:
        return call()
    except InvalidInput:
        raise
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidInput("model", "run on some of the rows", message, cure) from error


def named_rows(rows: Any) -> AbstractRows:
    """Rows from a dictionary of columns, a data frame, or rows of tallmc with named columns."""
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


def rows_to_probe(rows: AbstractRows) -> dict[str, Array]:
    """Some rows for checks, evenly spaced over all rows or over the first shard.

    They are not N, so that an array of N constants does not fit.
    """

    def spaced(n_rows: int) -> np.ndarray:
        return np.linspace(0, n_rows - 1, 61 if rows.n_rows != 61 else 59).astype(int)

    if isinstance(rows, ResidentRows):
        return rows.take(jnp.asarray(spaced(rows.n_rows)))
    assert isinstance(rows, ShardedRows), "the library has no other rows"
    lines = rows.shards.lines(0, spaced(rows.shards.manifest.shards[0].n_rows))
    return jax.tree.map(jnp.asarray, rows.view(lines))
