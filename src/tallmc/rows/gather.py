"""Rows by number from device arrays, in a form that XLA compiles well inside a loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, PyTree

from ..core.compiler import loops_are_whole

_MAX_PAIRWISE = 64  # a sort is faster for more indices


def take_rows(columns: PyTree[Array], indices: Int[Array, "*k"]) -> PyTree[Array]:
    """Rows by number. Every number must be in range."""
    in_step = indices.ndim == 1 and isinstance(indices, jax.core.Tracer)
    one_by_one = in_step and loops_are_whole()
    return _take_one_by_one(columns, indices) if one_by_one else _gather(columns, indices)


def materialised(indices: Int[Array, "*k"]) -> Int[Array, "*k"]:
    """Identity that forces XLA to materialise the indices.

    Otherwise they are recomputed for every column. A zero-trip loop prevents the fusion.
    """
    if not loops_are_whole():
        return indices
    zero_trips = jnp.minimum(indices.ravel()[0], 0)
    return lax.fori_loop(0, zero_trips, lambda _, numbers: jnp.maximum(numbers, 0), indices)


def first_of_each(indices: Int[Array, " n"]) -> Bool[Array, " n"]:
    """False where a row number repeats an earlier one. Callers use it to update each row once."""
    n = indices.shape[0]
    if n <= _MAX_PAIRWISE:
        earlier = jnp.arange(n)[None, :] < jnp.arange(n)[:, None]
        return ~jnp.any((indices[:, None] == indices[None, :]) & earlier, axis=1)
    order = jnp.argsort(indices, stable=True)
    ordered = indices[order]
    is_first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    return jnp.zeros(n, bool).at[order].set(is_first, unique_indices=True)


def _gather(columns: PyTree[Array], indices: Int[Array, "*k"]) -> PyTree[Array]:
    return jax.tree.map(lambda column: column.at[indices].get(mode="promise_in_bounds"), columns)


@jax.custom_batching.custom_vmap
def _take_one_by_one(columns: PyTree[Array], indices: Int[Array, " n"]) -> PyTree[Array]:
    """A loop of row copies.

    XLA counts a gather as a read of the whole array, and then does not compile the surrounding
    loop as one function.
    """

    def take(column: Array) -> Array:
        def copy(i: Array, rows: Array) -> Array:
            row = lax.dynamic_index_in_dim(column, indices[i], keepdims=False)
            return lax.dynamic_update_index_in_dim(rows, row, i, 0)

        empty = jnp.zeros((*indices.shape, *column.shape[1:]), column.dtype)
        return lax.fori_loop(0, indices.shape[0], copy, empty)

    return jax.tree.map(take, columns)


@_take_one_by_one.def_vmap
def _take_for_chains(
    chains: int, batched: Any, columns: PyTree[Array], indices: Int[Array, "c n"]
) -> tuple[PyTree[Array], Any]:
    """One gather for the rows of several chains; a loop of row copies for a single chain."""
    if chains == 1:
        rows = jax.tree.map(lambda column: column[None], _take_one_by_one(columns, indices[0]))
    else:
        rows = _gather(columns, indices)
    return rows, jax.tree.map(lambda _: True, columns)
