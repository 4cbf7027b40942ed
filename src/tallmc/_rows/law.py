"""Laws of a row number drawn with replacement: uniform, or fixed weights by an alias table."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, UInt32

from .._core.arrays import aligned_empty, on_device
from .._core.compiler import loops_are_whole
from .._core.random import random_words

# Row numbers from random bits, in exact integer arithmetic.
#
# A float32 uniform has 2²³ values. Multiplying it by N leaves rows of a tall table unreachable (16
# % of them at N = 10⁷). Here a row number uses 64 random bits: ⌊w N / 2⁶⁴⌋ with w = 2³² w₀ + w₁.
# Its law differs from uniform by less than N/2⁶⁴.


def uniform_index(words: UInt32[Array, "*k 2"], n_rows: UInt32[Any, ...]) -> Int[Array, "*k"]:
    """⌊w N / 2⁶⁴⌋."""
    low_of_first = words[..., 0] * n_rows
    carried = low_of_first + high_product(words[..., 1], n_rows)
    overflow = (carried < low_of_first).astype(np.uint32)
    return (high_product(words[..., 0], n_rows) + overflow).astype(np.int32)


def uniform_index_on_host(words: UInt32[np.ndarray, "*k 2"], n_rows: int) -> Int[np.ndarray, "*k"]:
    """`uniform_index` by NumPy, which has 64-bit integers."""
    first, second = (words[..., k].astype(np.uint64) for k in (0, 1))
    second *= np.uint64(n_rows)
    second >>= np.uint64(32)
    first *= np.uint64(n_rows)
    first += second
    first >>= np.uint64(32)
    return first.astype(np.int32)


def high_product(a: UInt32[Array, "*k"], b: UInt32[Any, ...]) -> UInt32[Array, "*k"]:
    """⌊a b / 2³²⌋ from 16-bit halves: JAX has no 64-bit integers by default."""
    mask = np.uint32(0xFFFF)
    a_low, a_high, b_low, b_high = a & mask, a >> 16, b & mask, b >> 16
    middle = ((a_low * b_low) >> 16) + ((a_low * b_high) & mask) + ((a_high * b_low) & mask)
    return a_high * b_high + ((a_low * b_high) >> 16) + ((a_high * b_low) >> 16) + (middle >> 16)


# Integer alias tables (Walker, Vose): draws from fixed weights, O(N) to build and O(1) per draw.
#
# Probabilities are rounded once to integers P_i with Σ P_i = M 2³². There are M = 2^k ≥ N cells of
# 2³² units. Cell c has `threshold[c]` units of row c; its other units belong to row `alias[c]`. A
# draw uses k bits for the cell and 32 bits for the place in the cell, so the realised law is
# *exactly* p_i = P_i / (M 2³²). The importance weights use these p_i. Every row with P_i ≥ 1 can be
# drawn, and rounding causes no bias. A row of probability zero has P_i = 0 and is never drawn.
#
# One sweep fills the table. The current heavy row (P ≥ 2³²) fills light rows until it is light
# itself; the next heavy row then fills it. Let D be the running sum of deficits and E the running
# sum of excesses. Light row j + 1 is filled by the first heavy row m with E_m ≥ D_j, so the sweep
# is one sorted look-up without a loop.

CELL = 2**32


class AliasTable(NamedTuple):
    """An alias table and the law that it realises."""

    threshold: np.ndarray  # (M,) uint32
    alias: np.ndarray  # (M,) int32
    probability: np.ndarray  # (N,) float64, the realised law


def alias_table(probability: np.ndarray) -> AliasTable:
    units = _integer_probabilities(probability)
    n_cells = len(units)
    threshold = np.full(n_cells, CELL - 1, np.uint32)
    alias = np.arange(n_cells, dtype=np.int32)

    light, heavy = np.flatnonzero(units < CELL), np.flatnonzero(units >= CELL)
    deficit, excess = np.cumsum(CELL - units[light]), np.cumsum(units[heavy] - CELL)
    threshold[light] = units[light]
    # The light row with which each heavy row is exhausted; the light rows after it are filled by
    # the next heavy row. There are fewer heavy rows than light ones, hence fewer look-ups.
    exhausted_by = np.searchsorted(deficit, excess, side="right")
    exhausted_before = np.cumsum(np.bincount(exhausted_by + 1, minlength=len(light) + 1))
    alias[light] = heavy[exhausted_before[: len(light)]]

    # A heavy row that ends below one cell is topped up by the next heavy row. The last heavy row
    # ends with exactly one cell of units.
    topped_up = np.flatnonzero(exhausted_by < len(light))
    threshold[heavy[topped_up]] = CELL + excess[topped_up] - deficit[exhausted_by[topped_up]]
    alias[heavy[topped_up]] = heavy[topped_up + 1]
    n_rows = len(probability)
    return AliasTable(threshold, alias, units[:n_rows] / (n_cells * CELL))


def _integer_probabilities(probability: np.ndarray) -> np.ndarray:
    """P_i with Σ P_i = M 2³² exactly, and P_i ≥ 1 where p_i > 0. Padded with zeros to length M."""
    n_rows = len(probability)
    is_possible = probability > 0
    possible = slice(0, n_rows) if is_possible.all() else np.flatnonzero(is_possible)
    n_possible = int(np.count_nonzero(is_possible))
    n_cells = 1 << (n_rows - 1).bit_length() if n_rows > 1 else 2
    total = n_cells * CELL
    units = np.zeros(n_cells, np.int64)
    units[possible] = np.maximum(probability[possible] * (total / probability.sum()), 1)
    missing = total - int(units.sum())
    if missing >= 0:
        each, rest = divmod(missing, n_possible)
        units[possible] += each
        units[np.flatnonzero(is_possible)[:rest]] += 1
    else:
        units[np.argmax(units)] += missing
    return units


# Rows by number from device arrays, in a form that XLA compiles well inside a loop.

_MAX_PAIRWISE = 64  # a sort is faster for more indices


def take_rows(columns: PyTree[Array], indices: Int[Array, "*k"]) -> PyTree[Array]:
    """Rows by number. Every number must be in range."""
    in_step = indices.ndim == 1 and isinstance(indices, jax.core.Tracer)
    one_by_one = in_step and loops_are_whole()
    return _take_one_by_one(columns, indices) if one_by_one else _gather(columns, indices)


def materialised(indices: Int[Array, "*k"]) -> Int[Array, "*k"]:
    """Identity that forces XLA to materialise the indices; else every column recomputes them."""
    if not loops_are_whole():
        return indices
    # A zero-trip loop prevents the fusion.
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


HostDraw = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Returns row numbers and their 1/p from random words of shape (..., 2)."""


class AbstractLaw(eqx.Module):
    """A law p on the rows. Two random words give one row number."""

    @abc.abstractmethod
    def draw(self, words: UInt32[Array, "*k 2"]) -> Int[Array, "*k"]:
        """Row numbers from random bits."""

    @abc.abstractmethod
    def draw_on_host(self) -> HostDraw:
        """A function that returns the same row numbers and their 1/p_i, by NumPy."""

    @abc.abstractmethod
    def inverse_probability(self, indices: Int[Array, "*k"]) -> Float[Array, "*k"]:
        """1/p_i, for rows with p_i > 0."""

    @abc.abstractmethod
    def probabilities(self) -> np.ndarray:
        """p_i of every row, in float64 on the host."""


class UniformLaw(AbstractLaw):
    """p_i = 1/N."""

    n_rows: int = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    def draw(self, words: UInt32[Array, "*k 2"]) -> Int[Array, "*k"]:
        return uniform_index(words, np.uint32(self.n_rows))

    def draw_on_host(self) -> HostDraw:
        n_rows, dtype = self.n_rows, self.dtype

        def draw(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            indices = uniform_index_on_host(words, n_rows)
            return indices, np.broadcast_to(np.asarray(n_rows, dtype), indices.shape)

        return draw

    def inverse_probability(self, indices: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return jnp.full(indices.shape, self.n_rows, self.dtype)

    def probabilities(self) -> np.ndarray:
        return np.full(self.n_rows, 1 / self.n_rows)


class AliasLaw(AbstractLaw):
    """Fixed weights, drawn with an alias table."""

    threshold: UInt32[Array, " M"]
    alias: Int[Array, " M"]
    inverse: Float[Array, " N"]

    @classmethod
    def of(cls, probability: np.ndarray, dtype: Any) -> AliasLaw:
        """The law of a probability vector, rounded as in `alias_table`."""
        table = alias_table(probability)
        # Rows with p = 0 are never drawn, so their infinite 1/p is never read.
        with np.errstate(divide="ignore"):
            inverse = 1 / table.probability
        return cls(
            on_device(table.threshold, np.uint32),
            on_device(table.alias, np.int32),
            on_device(inverse, dtype),
        )

    def draw(self, words: UInt32[Array, "*k 2"]) -> Int[Array, "*k"]:
        cell_bits = self.threshold.shape[0].bit_length() - 1
        cell = (words[..., 0] >> (32 - cell_bits)).astype(jnp.int32)
        threshold, alias = take_rows((self.threshold, self.alias), cell)
        return jnp.where(words[..., 1] < threshold, cell, alias)

    def draw_on_host(self) -> HostDraw:
        threshold, alias, inverse = map(np.asarray, (self.threshold, self.alias, self.inverse))
        shift = np.uint32(33 - len(threshold).bit_length())

        def draw(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            cell = (words[..., 0] >> shift).astype(np.intp)
            here = words[..., 1] < np.take(threshold, cell, mode="clip")
            indices = np.where(here, cell, np.take(alias, cell, mode="clip"))
            return indices, np.take(inverse, indices, mode="clip")

        return draw

    def inverse_probability(self, indices: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return take_rows(self.inverse, indices)

    def probabilities(self) -> np.ndarray:
        return 1 / np.asarray(self.inverse, np.float64)


# Row draws, and the batch of rows that belongs to them.


class RowDraws(eqx.Module):
    """Row numbers and their weights w_i, which are 1/(n p_i) for n draws with replacement."""

    indices: Int[Array, "*k n"]
    weights: Float[Array, "*k n"]


class Batch(eqx.Module):
    """The rows that a step uses.

    **Arguments:**

    - `rows`: a pytree of arrays with a leading axis for the rows.
    - `weights`: w_i, the weight of each row in the estimate of the sum over all rows.
    - `indices`: row numbers, for estimators that store something per row.
    - `packed`: all rows in the layout of the fused GPU kernel, which reads rows itself.
    """

    rows: PyTree[Any]
    weights: Float[Any, "*k n"]
    indices: Int[Any, "*k n"] | None = None
    packed: Float[Array, "N c"] | None = None

    @property
    def n_rows(self) -> int:
        """How many rows the batch has."""
        return self.weights.shape[-1]

    def with_weights(self, weights: Float[Any, "*k n"]) -> Batch:
        """The same rows with other weights."""
        return Batch(self.rows, weights, self.indices, self.packed)


# Streams: independent row draws with replacement from fixed probabilities p, weighted by 1/p.
#
# A stream does not depend on the state of a chain. Its draws can be made in blocks ahead of the
# steps that use them, by the process that holds the rows. For rows in memory, a stream is a law on
# row numbers, and the rows are gathered on the device.

HostBatches = Callable[[Any], Batch]  # returns batches from random words


def weights_of_batch(
    inverse: Float[np.ndarray, "*k m"], n_certain: int
) -> Float[np.ndarray, "*k n"]:
    """1 for the certain rows, which come first; 1/(m p_i) for m draws, from their 1/p_i."""
    m = inverse.shape[-1]
    weights = aligned_empty((*inverse.shape[:-1], n_certain + m), inverse.dtype)
    weights[..., :n_certain] = 1
    np.divide(inverse, m, out=weights[..., n_certain:])
    return weights


class AbstractStream(eqx.Module):
    """Draws from fixed probabilities p."""

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, shape: tuple[int, ...], first: Any = 0) -> RowDraws:
        """Draws from number `first` on in the key's sequence, each with weight 1/p."""

    @abc.abstractmethod
    def batches_on_host(self, rows: Any, certain: Int[np.ndarray, " a"]) -> HostBatches:
        """A function that returns batches from random words of shape (..., n, 2), by NumPy.

        A batch has the certain rows with weight 1, and then n − a draws with weight 1/((n − a) p).
        """

    @abc.abstractmethod
    def probabilities(self) -> Float[np.ndarray, " N"]:
        """p_i of every row, in float64 on the host."""


class ResidentStream(AbstractStream):
    """A stream of rows in memory."""

    law: AbstractLaw

    def draw(self, key: PRNGKeyArray, shape: tuple[int, ...], first: Any = 0) -> RowDraws:
        return self.at(self.law.draw(random_words(key, shape, first)))

    def batches_on_host(self, rows: Any, certain: Int[np.ndarray, " a"]) -> HostBatches:
        n_certain = len(certain)
        draw, gather = self.law.draw_on_host(), rows.gather_on_host()

        def batch(words: UInt32[np.ndarray, "*k n 2"]) -> Batch:
            drawn, inverse = draw(words[..., n_certain:, :])
            indices = np.empty(words.shape[:-1], np.int32)
            indices[..., :n_certain], indices[..., n_certain:] = certain, drawn
            return gather(indices, weights_of_batch(inverse, n_certain))

        return batch

    def at(self, indices: Int[Array, "*k"]) -> RowDraws:
        """These rows with their weights 1/p."""
        return RowDraws(indices, self.law.inverse_probability(indices))

    def probabilities(self) -> Float[np.ndarray, " N"]:
        return self.law.probabilities()
