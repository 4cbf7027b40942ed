"""Passes over all rows, a block at a time: memory does not grow with the number of rows, and sums keep their accuracy.

A sum over blocks carries its rounding error along (Knuth's two-sum), so that in float32 the error of a sum of N rows is
that of one block, not of N.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

_BLOCK_FLOATS = 2**19
_BLOCK_ROWS = 2**13


class Sum(eqx.Module):
    """A sum as `high + low`: `high` is the rounded sum, `low` what rounding lost."""

    high: PyTree[Array]
    low: PyTree[Array]

    def rounded(self) -> Any:
        return jax.tree.map(jnp.add, self.high, self.low)

    def float64(self) -> Any:
        """On the host, in double precision whatever the device's."""
        return jax.tree.map(lambda h, lo: np.asarray(h, np.float64) + np.asarray(lo, np.float64), self.high, self.low)


def count_rows(data: PyTree[Array]) -> int:
    return jax.tree.leaves(data)[0].shape[0]


def take_rows(data: PyTree[Array], indices: Int[Array, "*k"]) -> PyTree[Array]:
    """Rows by index; every index is known to be in range."""
    return jax.tree.map(lambda column: column.at[indices].get(mode="promise_in_bounds"), data)


def block_rows(n_rows: int, floats_per_row: int) -> int:
    """Rows a block: what it works on fits in cache, and the plain sum inside it is short enough to be accurate."""
    return max(1, min(n_rows, _BLOCK_ROWS, _BLOCK_FLOATS // max(1, floats_per_row)))


def sum_rows(block_sum: Callable[[PyTree[Array]], PyTree[Array]], data: PyTree[Array], floats_per_row: int) -> Sum:
    """Σ over all rows, where `block_sum(rows)` is the sum over a block of rows."""
    block, whole, tail = _blocks(data, floats_per_row)

    def add(i: Array, total: Sum) -> Sum:
        return _add(total, block_sum(_slice(data, i * block, block)))

    shape = jax.eval_shape(block_sum, _slice(data, 0, block))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)
    total = lax.fori_loop(0, whole, add, Sum(zero, zero))
    return _add(total, block_sum(tail)) if tail is not None else total


def map_rows(fn: Callable[[PyTree[Array]], Float[Array, "b ..."]], data: PyTree[Array], floats_per_row: int) -> Array:
    """One value a row, where `fn(rows)` gives those of a block."""
    block, whole, tail = _blocks(data, floats_per_row)
    mapped = lax.map(lambda i: fn(_slice(data, i * block, block)), jnp.arange(whole))
    mapped = mapped.reshape(whole * block, *mapped.shape[2:])
    return jnp.concatenate([mapped, fn(tail)]) if tail is not None else mapped


def _blocks(data: PyTree[Array], floats_per_row: int) -> tuple[int, int, PyTree[Array] | None]:
    n_rows = count_rows(data)
    block = block_rows(n_rows, floats_per_row)
    whole = n_rows // block
    tail = jax.tree.map(lambda column: column[whole * block :], data) if whole * block < n_rows else None
    return block, whole, tail


def _slice(data: PyTree[Array], start: Any, size: int) -> PyTree[Array]:
    return jax.tree.map(lambda column: lax.dynamic_slice_in_dim(column, start, size), data)


def _add(total: Sum, term: PyTree[Array]) -> Sum:
    high = jax.tree.map(jnp.add, total.high, term)

    def lost(old: Array, new: Array, added: Array) -> Array:
        rounded = new - old
        return (old - (new - rounded)) + (added - rounded)

    low = jax.tree.map(lambda e, old, new, added: e + lost(old, new, added), total.low, total.high, high, term)
    return Sum(high, low)
