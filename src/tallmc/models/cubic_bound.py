"""How large the third derivatives of a likelihood can be near a row's predictors.

Exact accept steps compare every row with its Taylor expansion of order 2. In coordinates u the
predictors of a row move by Δz = Ju. The remainder is below sup |D³f[Ju, Ju, Ju]|/6. For symmetric
forms in Euclidean space the supremum over one unit vector u is that over three different ones
(Banach, 1938), so it bounds changes of the remainder too.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.linear_maps import dot


class AbstractCubicBound(eqx.Module):
    """A bound on the third derivatives of one row."""

    @property
    @abc.abstractmethod
    def is_global(self) -> bool:
        """Whether the bound is finite for all predictors, so with an infinite `reach`."""

    @abc.abstractmethod
    def largest_cubic(
        self,
        z: Float[Array, " k"],
        reach: Float[Array, " k"],
        gram: Float[Array, "k k"],
        y: Float[Array, ""],
    ) -> Float[Array, ""]:
        """A bound on |D³f(z + m)[v, v, v]|, infinite if there is none.

        For all |m_k| ≤ `reach`_k, which may be infinite, and all v = Ju with ‖u‖ ≤ 1;
        `gram` = JJᵀ.
        """

    @abc.abstractmethod
    def distance(self, z: Float[Array, " k"], move: Float[Array, " k"]) -> Float[Array, ""]:
        """How far the predictors move, in units in which f has no fine structure."""


def size_along(gram: Float[Array, "k k"], weights: Float[Array, " k"]) -> Float[Array, ""]:
    """The largest |weights · Ju| with ‖u‖ ≤ 1, from JJᵀ."""
    return jnp.sqrt(jnp.maximum(dot(dot(weights, gram), weights), 0))


def largest_between(
    function: Callable[[Array], Array],
    low: Float[Array, ""],
    high: Float[Array, ""],
    turns: tuple[float, ...],
) -> Float[Array, ""]:
    """The largest |function| between `low` and `high`, if it turns at `turns` only."""
    points = [low, high, *(jnp.clip(turn, low, high) for turn in turns)]
    return jnp.max(jnp.abs(jnp.stack([function(point) for point in points])))
