"""Compensated sums: a sum carries its rounding error along (Knuth's two-sum).

In float32, the error of a sum over N rows is then the error of one block of rows, not of N rows.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree


class Sum(eqx.Module):
    """A sum as `high + low`: `high` is the rounded sum, `low` the rounding error."""

    high: PyTree[Array]
    low: PyTree[Array]

    @classmethod
    def zero(cls, shapes: PyTree[jax.ShapeDtypeStruct]) -> Sum:
        """The empty sum of terms with these shapes."""
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return cls(zero, zero)

    def plus(self, term: PyTree[Array]) -> Sum:
        """The sum with one more term."""
        high = jax.tree.map(jnp.add, self.high, term)
        low = jax.tree.map(
            lambda e, old, new, added: e + _rounding_error(old, new, added),
            self.low,
            self.high,
            high,
            term,
        )
        return Sum(high, low)

    def rounded(self) -> Any:
        """The sum in the precision of its terms."""
        return jax.tree.map(jnp.add, self.high, self.low)

    def float64(self) -> Any:
        """The sum in float64 on the host, at any precision of the device."""
        return jax.tree.map(
            lambda h, lo: np.asarray(h, np.float64) + np.asarray(lo, np.float64),
            self.high,
            self.low,
        )


def split_sum(values: Float[Array, "n ..."]) -> tuple[Float[Array, ...], Float[Array, ...]]:
    """Σ values over the first axis as (high, low): the rounded sum and its rounding error."""
    width = 1 << max(values.shape[0] - 1, 0).bit_length()
    padding = [(0, width - values.shape[0]), *[(0, 0)] * (values.ndim - 1)]
    high, low = jnp.pad(values, padding), jnp.zeros(values.shape[1:], values.dtype)
    while high.shape[0] > 1:
        first, second = jnp.split(high, 2)
        high = first + second
        low = low + jnp.sum(_rounding_error(first, high, second), axis=0)
    return high[0], low


def _rounding_error(old: Array, new: Array, added: Array) -> Array:
    """old + added − new, exactly, where `new` is the rounded sum (Knuth)."""
    rounded = new - old
    return (old - (new - rounded)) + (added - rounded)
