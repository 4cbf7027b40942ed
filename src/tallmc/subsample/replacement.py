"""Draws with replacement, and the take-all stratum.

    n draws from p:   w_i = 1/(n p_i)
    take-all:         certain rows, which are in every step, w_i = 1

A row with expected count n p_i ≥ 1 can be in every step with weight one. It then adds no noise, and
the draws go to the other rows (`rows/probabilities.py`).
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from ..core.arrays import on_device
from ..core.compiler import loops_are_whole
from ..core.random import random_words
from ..gradient.base import AbstractGradient
from ..rows.base import AbstractRows
from ..rows.batch import RowDraws
from ..rows.stream import AbstractStream, HostBatches
from .selection import AbstractStaticSelection, centred

NO_ROWS = np.zeros(0, np.int32)
# Draws per loop iteration. An iteration costs almost nothing if XLA compiles the loop whole, and
# much otherwise.
_CHUNK, _CHUNK_OF_WHOLE_LOOP = 64, 16


class WithReplacement(AbstractStaticSelection):
    """The certain rows and, up to the size, independent draws from a stream."""

    stream: AbstractStream
    size: int = eqx.field(static=True)
    certain: Int[Array, " a"] = eqx.field(default_factory=lambda: jnp.asarray(NO_ROWS))
    """Rows that are in every step. The stream does not draw them."""

    @property
    def draws(self) -> int:
        """Number of random draws per step."""
        return self.size - self.certain.shape[0]

    def draw(self, key: PRNGKeyArray, steps: int) -> RowDraws:
        return self.completed(self.stream.draw(key, (steps, self.draws)))

    def completed(self, drawn: RowDraws) -> RowDraws:
        """The certain rows with weight 1, and draws from the stream with weight 1/(n p_i)."""
        certain = jnp.broadcast_to(self.certain, (*drawn.indices.shape[:-1], *self.certain.shape))
        weights = drawn.weights / self.draws
        return RowDraws(
            jnp.concatenate([certain, drawn.indices], axis=-1),
            jnp.concatenate([jnp.ones(certain.shape, weights.dtype), weights], axis=-1),
        )

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        n_certain = self.certain.shape[0]
        return jnp.concatenate([jnp.zeros_like(terms[:n_certain]), centred(terms[n_certain:])])

    def supplied(self) -> SuppliedRows:
        """The selection for steps whose rows `gather_on_host` has gathered."""
        return SuppliedRows(n_certain=on_device(self.certain.shape[0], np.int32), size=self.size)

    def padded(self) -> PaddedReplacement:
        """The same selection for programs that do not depend on the number of certain rows."""
        n_certain = self.certain.shape[0]
        certain = np.resize(np.r_[np.asarray(self.certain), 0], self.size).astype(np.int32)
        return PaddedReplacement(
            stream=self.stream,
            n_certain=on_device(n_certain, np.int32),
            certain=on_device(certain, np.int32),
            size=self.size,
        )

    def gather_on_host(self, source: AbstractRows) -> HostBatches:
        """A function that returns the certain rows with weight 1, and rows drawn with its words."""
        return self.stream.batches_on_host(source, np.asarray(self.certain, np.int64))


class SuppliedRows(AbstractStaticSelection):
    """The rows of each step are gathered before the step: `draw` returns random words for them.

    Neither the rows nor their law are part of it. The number of certain rows, which come first in
    each batch, is traced. Programs therefore depend on the number of rows per step alone.
    """

    n_certain: Int[Array, ""]
    size: int = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, steps: int) -> UInt32[Array, "steps n 2"]:
        return random_words(key, (steps, self.size))

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return _spread_of_draws(terms, self.n_certain)


class PaddedReplacement(AbstractStaticSelection):
    """`WithReplacement` with a traced number of certain rows, which come first in each batch."""

    stream: AbstractStream
    n_certain: Int[Array, ""]
    certain: Int[Array, " n"]
    """The certain rows, and any others."""
    size: int = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, steps: int) -> RowDraws:
        drawn = self.stream.draw(key, (steps, self.size))
        is_certain = jnp.arange(self.size) < self.n_certain
        weights = drawn.weights / (self.size - self.n_certain)
        return RowDraws(
            jnp.where(is_certain, self.certain, drawn.indices), jnp.where(is_certain, 1, weights)
        )

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return _spread_of_draws(terms, self.n_certain)


def alternating_signs(size: int, n_certain: Any, dtype: Any) -> Float[Array, " n"]:
    """±1 in turn for the draws, 0 for the certain rows, which come first in a batch of `size` rows.

    With an odd number of draws the last sign is 0, and the others are scaled up.
    """
    number, draws = jnp.arange(size) - n_certain, size - n_certain
    paired = draws - draws % 2
    signs = jnp.where((number >= 0) & (number < paired), 1 - 2 * (number % 2), 0)
    return signs * jnp.sqrt(draws / jnp.maximum(paired, 1)).astype(dtype)


def _spread_of_draws(terms: Float[Array, "n d"], n_certain: Int[Array, ""]) -> Float[Array, "n d"]:
    """√(m/(m − 1)) (t_i − t̄) of the m terms that are not certain; zero for the certain ones."""
    size = terms.shape[0]
    drawn = jnp.arange(size) >= n_certain
    m = (size - n_certain).astype(terms.dtype)
    mean = jnp.sum(terms, axis=0, where=drawn[:, None]) / m
    scale = jnp.sqrt(jnp.where(m > 1, m / (m - 1), jnp.nan))
    return jnp.where(drawn[:, None], scale * (terms - mean), 0)


def sum_of_draws(
    stream: AbstractStream,
    gradient: AbstractGradient,
    learned: Any,
    position: Float[Array, " d"],
    count: Int[Array, ""],
    total: Int[Array, ""],
    key: PRNGKeyArray,
    source: AbstractRows,
    first: Any = 0,
) -> Float[Array, " d"]:
    """Σ r_i/(total · p_i) over `count` draws of this key's sequence, starting at number `first`.

    The draws are made in chunks, so a different `count` does not recompile. `learned` is the
    memory of the gradient estimator.
    """
    size = _CHUNK_OF_WHOLE_LOOP if loops_are_whole() else _CHUNK

    def add_chunk(chunk: Array, so_far: Float[Array, " d"]) -> Float[Array, " d"]:
        drawn = stream.draw(key, (size,), first + chunk * size)
        counted = chunk * size + jnp.arange(size) < count
        weights = jnp.where(counted, drawn.weights / total, 0)
        batch = source.complete(source.gather(RowDraws(drawn.indices, weights)))
        return so_far + gradient.residual_sum(position, batch, learned)

    return lax.fori_loop(0, (count + size - 1) // size, add_chunk, jnp.zeros_like(position))
