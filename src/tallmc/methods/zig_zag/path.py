"""Exact averages along a piecewise linear path.

On a piece of length τ the position is m + νt, so

    ∫ (m + νt) dt = mτ + ντ²/2,   ∫ (m + νt)² dt = m²τ + mντ² + ν²τ³/3.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class PathIntegrals(eqx.Module):
    """Integrals of the move away from the anchor and of its square, per parameter."""

    move: Float[Array, " d"]
    square: Float[Array, " d"]

    @classmethod
    def zero(cls, like: Float[Array, " d"]) -> PathIntegrals:
        """The integrals of a path of length 0."""
        return cls(jnp.zeros_like(like), jnp.zeros_like(like))

    def extended(
        self, move: Float[Array, " d"], velocity: Float[Array, " d"], time: Float[Array, ""]
    ) -> PathIntegrals:
        """The integrals of the path with one more piece."""
        square = move**2 + velocity * time * (move + velocity * time / 3)
        return PathIntegrals(
            self.move + time * (move + velocity * time / 2), self.square + time * square
        )

    def mean(self, time: Float[Array, ""]) -> Float[Array, " d"]:
        """The average of the move over a path of this length."""
        return self.move / time

    def variance(self, time: Float[Array, ""]) -> Float[Array, " d"]:
        """The variance of the move over a path of this length."""
        return jnp.maximum(self.square / time - self.mean(time) ** 2, 0)
