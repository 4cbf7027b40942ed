"""Streams: independent row draws with replacement from fixed probabilities p, weighted by 1/p.

A stream does not depend on the state of a chain. Its draws can be made in blocks ahead of the
steps that use them, by the process that holds the rows. For rows in memory, a stream is a law on
row numbers, and the rows are gathered on the device.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from ..core.arrays import aligned_empty
from ..core.random import random_words
from .batch import Batch, RowDraws
from .law import AbstractLaw

HostBatches = Callable[[Any], Batch]
"""Returns batches from random words."""


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
    def batches_on_host(self, source: Any, certain: Int[np.ndarray, " a"]) -> HostBatches:
        """A function that returns batches from random words of shape (..., n, 2), by NumPy.

        A batch has the certain rows with weight 1, and then n − a draws with weight 1/((n − a) p).
        `source` are the rows.
        """

    @abc.abstractmethod
    def probabilities(self) -> Float[np.ndarray, " N"]:
        """p_i of every row, in float64 on the host."""


class ResidentStream(AbstractStream):
    """A stream of rows in memory."""

    law: AbstractLaw

    def draw(self, key: PRNGKeyArray, shape: tuple[int, ...], first: Any = 0) -> RowDraws:
        return self.at(self.law.draw(random_words(key, shape, first)))

    def batches_on_host(self, source: Any, certain: Int[np.ndarray, " a"]) -> HostBatches:
        n_certain = len(certain)
        draw, gather = self.law.draw_on_host(), source.gather_on_host()

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
