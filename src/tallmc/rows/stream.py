"""Streams: independent row draws with replacement from fixed probabilities p, weighted by 1/p.

A stream does not depend on the state of a chain. Its draws can be made in blocks ahead of the
steps that use them, by the process that holds the rows. For rows in memory, a stream is a law on
row numbers, and the rows are gathered on the device.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..core.random import random_words
from .batch import RowDraws
from .law import AbstractLaw, HostDraw


class AbstractStream(eqx.Module):
    """Draws from fixed probabilities p."""

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, shape: tuple[int, ...], first: Any = 0) -> RowDraws:
        """Draws from number `first` on in the key's sequence, each with weight 1/p."""

    @abc.abstractmethod
    def draw_on_host(self, source: Any) -> HostDraw:
        """A function that returns row numbers and weights 1/p from random words, by NumPy.

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

    def draw_on_host(self, source: Any) -> HostDraw:
        return self.law.draw_on_host()

    def at(self, indices: Int[Array, "*k"]) -> RowDraws:
        """These rows with their weights 1/p."""
        return RowDraws(indices, self.law.inverse_probability(indices))

    def probabilities(self) -> Float[np.ndarray, " N"]:
        return self.law.probabilities()
