"""Switching times of a rate that grows or falls linearly.

The first arrival τ of a Poisson process with rate (α + βt)₊ solves, for a standard exponential E,

    ∫₀^τ (α + βt)₊ dt = E.

With α₊ = max(α, 0) the rate is positive from the time τ₀ = max(−α, 0)/β on, and

    τ = τ₀ + 2E / (α₊ + √(α₊² + 2βE)),

which has no difference of nearly equal numbers. A falling rate may end before E is reached: the
root is then not real, and there is no arrival.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def first_arrivals(
    start: Float[Array, " d"], growth: Float[Array, " d"], exponential: Float[Array, " d"]
) -> Float[Array, " d"]:
    """τ of every coordinate, from its α, β and E; infinite if there is no arrival."""
    positive = jnp.maximum(start, 0)
    tiny = jnp.finfo(start.dtype).tiny
    grows = growth > 0
    wait = jnp.where(start < 0, -start / jnp.where(grows, growth, 1), 0)
    square = positive**2 + 2 * growth * exponential
    denominator = positive + jnp.sqrt(jnp.maximum(square, 0))
    found = wait + 2 * exponential / jnp.maximum(denominator, tiny)
    never = (square < 0) | (~grows & (start <= 0))
    return jnp.where(never, jnp.inf, found)
