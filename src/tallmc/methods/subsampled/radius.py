"""Bounds within a radius of the anchor, and beyond.

Within the radius r the predictors of a row stay in a box, so the supremum over this box is enough.
It is often a fraction of the supremum over all predictors, and it is finite for likelihoods whose
derivatives have no bound. Beyond the radius M is larger by a factor κ, and c_i is at least 1/κ of
its value for all predictors. If there is no such value, there is no M: such moves are rejected, so
the chain draws from the posterior within the radius.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

_FACTOR_BEYOND = 16.0
"""κ."""
_OFTEN_BEYOND, _NEVER_BEYOND = 1e-3, 1e-10
"""Chances that a Gaussian position is beyond the radius, with and without a bound there."""


def radius_of(dim: int, bounded: bool) -> float:
    """r: positions hardly ever leave it; with a bound beyond, they may sometimes."""
    from scipy.special import chdtri  # a slow import

    return math.sqrt(chdtri(dim, _OFTEN_BEYOND if bounded else _NEVER_BEYOND))


def covering(within: Float[Array, " n"], everywhere: Float[Array, " n"]) -> Float[Array, " n"]:
    """Constants that hold within the radius, and beyond it with the factor κ."""
    return jnp.maximum(within, everywhere / _FACTOR_BEYOND)


def factor_beyond(
    radius: Float[Array, ""], bounded: bool, here: Float[Array, " d"], there: Float[Array, " d"]
) -> Float[Array, ""]:
    """1 within the radius; beyond it κ, or infinite without a bound there."""
    farthest = jnp.maximum(jnp.linalg.norm(here), jnp.linalg.norm(there))
    return jnp.where(farthest <= radius, 1, _FACTOR_BEYOND if bounded else jnp.inf)
