"""Passes over all rows, a block at a time: memory does not grow with the number of rows, and sums keep their accuracy.

A sum over blocks carries its rounding error along (Knuth's two-sum), so that in float32 the error of a sum of N rows is
that of one block, not of N.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from ._compiler import loops_are_whole

# Some accelerators round float32 factors to eleven bits unless told not to.
dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)

_BLOCK_FLOATS = 2**19
_BLOCK_ROWS = 2**13
_COMPARED_PAIRWISE = 64  # beyond it a sort is faster


class Sum(eqx.Module):
    """A sum as `high + low`: `high` is the rounded sum, `low` what rounding lost."""

    high: PyTree[Array]
    low: PyTree[Array]

    def plus(self, term: PyTree[Array]) -> Sum:
        high = jax.tree.map(jnp.add, self.high, term)
        low = jax.tree.map(lambda e, old, new, added: e + _lost(old, new, added), self.low, self.high, high, term)
        return Sum(high, low)

    def rounded(self) -> Any:
        return jax.tree.map(jnp.add, self.high, self.low)

    def float64(self) -> Any:
        """On the host, in double precision whatever the device's."""
        return jax.tree.map(lambda h, lo: np.asarray(h, np.float64) + np.asarray(lo, np.float64), self.high, self.low)


def count_rows(data: PyTree[Array]) -> int:
    return jax.tree.leaves(data)[0].shape[0]


def take_rows(data: PyTree[Array], indices: Int[Array, "*k"]) -> PyTree[Array]:
    """Rows by index; every index is known to be in range."""
    in_a_step = indices.ndim == 1 and isinstance(indices, jax.core.Tracer)
    return _take_one_by_one(data, indices) if in_a_step and loops_are_whole() else _gather(data, indices)


def in_memory(indices: Int[Array, "*k"]) -> Int[Array, "*k"]:
    """The same numbers. XLA would compute each anew for every number of its row; what a loop starts from it writes down."""
    if not loops_are_whole():
        return indices
    no_turns = jnp.minimum(indices.ravel()[0], 0)
    return lax.fori_loop(0, no_turns, lambda _, numbers: jnp.maximum(numbers, 0), indices)


def _gather(data: PyTree[Array], indices: Int[Array, "*k"]) -> PyTree[Array]:
    return jax.tree.map(lambda column: column.at[indices].get(mode="promise_in_bounds"), data)


@jax.custom_batching.custom_vmap
def _take_one_by_one(data: PyTree[Array], indices: Int[Array, " n"]) -> PyTree[Array]:
    """A loop of copies. XLA takes a gather for a reading of all the data, and would not compile the loop around it whole."""

    def take(column: Array) -> Array:
        def copy(i: Array, rows: Array) -> Array:
            row = lax.dynamic_index_in_dim(column, indices[i], keepdims=False)
            return lax.dynamic_update_index_in_dim(rows, row, i, 0)

        return lax.fori_loop(0, indices.shape[0], copy, jnp.zeros((*indices.shape, *column.shape[1:]), column.dtype))

    return jax.tree.map(take, data)


@_take_one_by_one.def_vmap
def _take_for_chains(chains: int, batched: Any, data: PyTree[Array], indices: Int[Array, "c n"]) -> tuple[PyTree[Array], Any]:
    """The rows of several chains at once; for a single one nothing changes."""
    if chains == 1:
        rows = jax.tree.map(lambda column: column[None], _take_one_by_one(data, indices[0]))
    else:
        rows = _gather(data, indices)
    return rows, jax.tree.map(lambda _: True, data)


def first_of_each(indices: Int[Array, " n"]) -> Bool[Array, " n"]:
    """False where a row number repeats an earlier one: what is kept for a row changes once, however often it was drawn."""
    n = indices.shape[0]
    if n <= _COMPARED_PAIRWISE:
        earlier = jnp.arange(n)[None, :] < jnp.arange(n)[:, None]
        return ~jnp.any((indices[:, None] == indices[None, :]) & earlier, axis=1)
    order = jnp.argsort(indices, stable=True)
    ordered = indices[order]
    new = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    return jnp.zeros(n, bool).at[order].set(new, unique_indices=True)


def floats_per_row(data: PyTree[Array]) -> int:
    return sum(math.prod(column.shape[1:]) for column in jax.tree.leaves(data))


def block_rows(n_rows: int, width: int) -> int:
    """Rows a block: what it works on fits in cache, and the plain sum inside it is short enough to be accurate."""
    return max(1, min(n_rows, _BLOCK_ROWS, _BLOCK_FLOATS // max(1, width)))


class Part(eqx.Module):
    """Some of the blocks of a pass: the first `count` in `order`. How many is no matter of compilation."""

    order: Int[Array, " blocks"]
    count: Int[Array, ""]

    @classmethod
    def of(cls, n_rows: int, width: int, share: float) -> Part:
        """About this share of the rows, in blocks chosen at random; with a share of 1 all of them."""
        whole = n_rows // block_rows(n_rows, width)
        order = np.random.default_rng(0).permutation(whole)
        return cls(jnp.asarray(order, jnp.int32), jnp.int32(max(1, round(share * whole))))

    def n_rows(self, n_rows: int, width: int) -> int:
        """Rows in this part."""
        count = int(self.count)
        return n_rows if count == len(self.order) else count * block_rows(n_rows, width)


def sum_rows(
    block_sum: Callable[[PyTree[Array]], PyTree[Array]], data: PyTree[Array], width: int, part: Part | None = None
) -> Sum:
    """Σ over all rows, or a part of them, where `block_sum(rows)` is the sum over a block of rows.

    `width` is the number of floats that a row takes up in the computation.
    """
    block, whole, tail = _blocks(data, width)

    def add(i: Array, total: Sum) -> Sum:
        number = i if part is None else part.order[i]
        return total.plus(block_sum(_slice(data, number * block, block)))

    shape = jax.eval_shape(block_sum, _slice(data, 0, block))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)
    total = lax.fori_loop(0, whole if part is None else part.count, add, Sum(zero, zero))
    if tail is None:
        return total
    with_tail = total.plus(block_sum(tail))
    if part is None:
        return with_tail
    return jax.tree.map(lambda with_, without: jnp.where(part.count == whole, with_, without), with_tail, total)


def map_rows(fn: Callable[[PyTree[Array]], Float[Array, "b ..."]], data: PyTree[Array], width: int) -> Array:
    """One value a row, where `fn(rows)` gives those of a block."""
    block, whole, tail = _blocks(data, width)
    mapped = lax.map(lambda i: fn(_slice(data, i * block, block)), jnp.arange(whole))
    mapped = mapped.reshape(whole * block, *mapped.shape[2:])
    return jnp.concatenate([mapped, fn(tail)]) if tail is not None else mapped


def split_sum(values: Float[Array, " n"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Σ values as high + low: the rounded sum, and what rounding lost on the way."""
    width = 1 << max(values.shape[0] - 1, 0).bit_length()
    high, low = jnp.pad(values, (0, width - values.shape[0])), jnp.zeros((), values.dtype)
    while high.shape[0] > 1:
        first, second = jnp.split(high, 2)
        high = first + second
        low = low + jnp.sum(_lost(first, high, second))
    return high[0], low


def _blocks(data: PyTree[Array], width: int) -> tuple[int, int, PyTree[Array] | None]:
    n_rows = count_rows(data)
    block = block_rows(n_rows, width)
    whole = n_rows // block
    tail = jax.tree.map(lambda column: column[whole * block :], data) if whole * block < n_rows else None
    return block, whole, tail


def _slice(data: PyTree[Array], start: Any, size: int) -> PyTree[Array]:
    return jax.tree.map(lambda column: lax.dynamic_slice_in_dim(column, start, size), data)


def _lost(old: Array, new: Array, added: Array) -> Array:
    """old + added − new, where new is their rounded sum: exact (Knuth)."""
    rounded = new - old
    return (old - (new - rounded)) + (added - rounded)
