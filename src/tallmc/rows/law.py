"""Laws of a row number drawn with replacement: uniform, or fixed weights by an alias table."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from ..core.arrays import on_device
from .alias import alias_table
from .bits import uniform_index
from .gather import take_rows

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
            indices = uniform_index(words, np.uint32(n_rows))
            return indices, np.full(indices.shape, n_rows, dtype)

        return draw

    def inverse_probability(self, indices: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return jnp.full(indices.shape, self.n_rows, self.dtype)

    def probabilities(self) -> np.ndarray:
        return np.full(self.n_rows, 1 / self.n_rows)


class AliasLaw(AbstractLaw):
    """Fixed weights, drawn with the alias table of `alias.py`."""

    threshold: UInt32[Array, " M"]
    alias: Int[Array, " M"]
    inverse: Float[Array, " N"]

    @classmethod
    def of(cls, probability: np.ndarray, dtype: Any) -> AliasLaw:
        """The law of a probability vector, rounded as in `alias.py`."""
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
