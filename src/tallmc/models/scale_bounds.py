"""Third derivatives of likelihoods with one location and the log of a scale or shape.

Gaussian, in z and s = log σ, along (a, b) with v = (y − z)/σ and α = a/σ:

    f = s + ½v²,   |D³f| ≤ 6α²|b| + 12|α|b²|v| + 4|b|³v².

Gamma, in z = log μ and s = log α, along (a, b) with t = log y − z and H(t) = eᵗ − 1 − t:

    f = eˢH(t) + k(s),   |D³f| ≤ eˢ(|b|³H + 3b²|a||H'| + (3|b|a² + |a|³)eᵗ) + |b|³|k⁽³⁾|.

k(s) = δ(eˢ) − s/2 has |k⁽³⁾| < 0.047 for all s. Neither likelihood has a bound for all z.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from .cubic_bound import AbstractCubicBound, largest_between

_LARGEST_NORMALISATION = 0.047
"""sup |k⁽³⁾|."""


class GaussianCubicBound(AbstractCubicBound):
    """The bound for Gaussian noise of unknown scale."""

    @property
    def is_global(self) -> bool:
        return False

    def largest_cubic(
        self,
        z: Float[Array, " 2"],
        reach: Float[Array, " 2"],
        gram: Float[Array, "2 2"],
        y: Float[Array, ""],
    ) -> Float[Array, ""]:
        precision = jnp.exp(-z[1] + reach[1])
        a, b = jnp.sqrt(jnp.diagonal(gram))
        a, miss = a * precision, (jnp.abs(y - z[0]) + reach[0]) * precision
        found = b * (6 * a**2 + 12 * a * b * miss + 4 * (b * miss) ** 2)
        return jnp.where(jnp.all(jnp.isfinite(reach)), found, jnp.inf)

    def distance(self, z: Float[Array, " 2"], move: Float[Array, " 2"]) -> Float[Array, ""]:
        return jnp.maximum(jnp.abs(move[0]) * jnp.exp(-z[1]), jnp.abs(move[1]))


class GammaCubicBound(AbstractCubicBound):
    """The bound for Gamma regression of unknown shape."""

    @property
    def is_global(self) -> bool:
        return False

    def largest_cubic(
        self,
        z: Float[Array, " 2"],
        reach: Float[Array, " 2"],
        gram: Float[Array, "2 2"],
        y: Float[Array, ""],
    ) -> Float[Array, ""]:
        a, b = jnp.sqrt(jnp.diagonal(gram))
        t = jnp.log(y) - z[0]
        low, high = t - reach[0], t + reach[0]
        misfit = largest_between(lambda t: jnp.expm1(t) - t, low, high, ())
        slope = largest_between(jnp.expm1, low, high, ())
        terms = b**3 * misfit + 3 * b**2 * a * slope + (3 * b + a) * a**2 * jnp.exp(high)
        found = jnp.exp(z[1] + reach[1]) * terms + b**3 * _LARGEST_NORMALISATION
        return jnp.where(jnp.all(jnp.isfinite(reach)), found, jnp.inf)

    def distance(self, z: Float[Array, " 2"], move: Float[Array, " 2"]) -> Float[Array, ""]:
        return jnp.max(jnp.abs(move))
