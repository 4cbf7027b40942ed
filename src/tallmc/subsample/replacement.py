"""Draws with replacement, and the take-all stratum.

    n draws from p:   w_i = 1/(n p_i)
    with certainty:   rows that are in every step, w_i = 1

A row whose expected count n p_i reaches one might as well be in every step with weight one: it then makes no noise, and the draws
go to the rest (classical survey sampling). Taking it out raises the expected counts of the others, so this is repeated until no
row is left that qualifies.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._compiler import loops_are_whole
from .._random import random_words
from .._rows import take_rows
from ..gradient.base import AbstractGradient, Batch
from .law import AbstractLaw
from .selection import AbstractStaticSelection, Picks, centred

NO_ROWS = np.zeros(0, np.int32)
_CHUNK, _CHUNK_OF_WHOLE_LOOP = 64, 16  # rows at a time: a turn of a loop costs much, or next to nothing
_LEAST_DRAWN = 0.25  # of a step's rows: what is certain leaves so much to chance, and rows that nobody expected still turn up


class WithReplacement(AbstractStaticSelection):
    """The rows that every step sees and, to make up the size, independent draws from one law."""

    law: AbstractLaw
    size: int = eqx.field(static=True)
    certain: Int[Array, " a"] = eqx.field(default_factory=lambda: jnp.asarray(NO_ROWS))
    """Rows that every step sees; the law does not draw them."""

    @property
    def draws(self) -> int:
        return self.size - self.certain.shape[0]

    def supply(self, key: PRNGKeyArray, steps: int) -> Picks:
        return self.picks_at(self.law.draw(random_words(key, (steps, self.draws))))

    def picks_at(self, indices: Int[Array, "*k n"]) -> Picks:
        """The certain rows, and these with the weights they have when drawn."""
        certain = jnp.broadcast_to(self.certain, (*indices.shape[:-1], *self.certain.shape))
        weights = self.law.inverse_probability(indices) / self.draws
        return Picks(
            jnp.concatenate([certain, indices], axis=-1),
            jnp.concatenate([jnp.ones(certain.shape, weights.dtype), weights], axis=-1),
        )

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        fixed = self.certain.shape[0]
        return jnp.concatenate([jnp.zeros_like(terms[:fixed]), centred(terms[fixed:])])


def certain_rows(probability: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows that a step of `size` rows should always see, and the law of its other draws.

    At least two rows are left to chance: from a single one nobody could tell how noisy it is.

    >>> certain_rows(np.array([0.6, 0.2, 0.1, 0.1]), 3)
    (array([0]), array([0.  , 0.5 , 0.25, 0.25]))
    """
    most = max(0, min(size - 2, int(size * (1 - _LEAST_DRAWN) + 0.5), np.count_nonzero(probability) - 1))
    certain, rest = np.zeros(len(probability), bool), probability / probability.sum()
    while True:
        room = most - certain.sum()
        new = np.flatnonzero(rest * (size - certain.sum()) >= 1)
        new = new[np.argsort(-rest[new], kind="stable")][:room]
        if not len(new):
            return np.flatnonzero(certain), rest
        certain[new] = True
        rest = np.where(certain, 0, probability)
        rest = rest / rest.sum()


def sum_of_draws(
    law: AbstractLaw,
    gradient: AbstractGradient,
    learned: Any,
    position: Float[Array, " d"],
    count: Int[Array, ""],
    total: Int[Array, ""],
    key: PRNGKeyArray,
) -> Float[Array, " d"]:
    """Σ r_i/(total · p_i) over `count` fresh draws, a chunk at a time: any number of them, without another compilation.

    `learned` is the gradient's memory.
    """
    posterior, size = gradient.posterior, _CHUNK_OF_WHOLE_LOOP if loops_are_whole() else _CHUNK

    def add_chunk(chunk: Array, so_far: Float[Array, " d"]) -> Float[Array, " d"]:
        indices = law.draw(random_words(key, (size,), chunk * size))
        used = chunk * size + jnp.arange(size) < count
        weights = jnp.where(used, law.inverse_probability(indices) / total, 0)
        rows = take_rows(posterior.data, indices)
        return so_far + gradient.residual_sum(position, Batch(rows, weights, indices), learned)

    return lax.fori_loop(0, (count + size - 1) // size, add_chunk, jnp.zeros_like(position))
