"""log Γ without cancellation, by Stirling's formula and its remainder δ.

    log Γ(x) = (x − ½) log x − x + ½ log 2π + δ(x)

Differences such as log Γ(α) − α log α + α are small next to their terms for large α. In float32 an
error of 10⁻⁷ α log α per row adds up over the rows. Likelihoods cancel the large terms by hand, and
δ ≈ 1/12x is left. Its derivatives by automatic differentiation are as accurate.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jaxtyping import Array, Float

_SHIFT = 8.0
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
"""δ(x) = Σ_k a_k x^{−(2k+1)}, accurate to 1e-16 for x ≥ 8."""


def stirling_remainder(x: Float[Array, ""]) -> Float[Array, ""]:
    """δ(x) for x > 0."""
    # δ(x) = δ(x + 8) + (x + 7½) log(x + 8) − (x + ½) log x − log (x + 1)⋯(x + 7) − 8
    is_small = x < _SHIFT
    small = jnp.where(is_small, x, 1)
    product = functools.reduce(lambda total, j: total * (small + j), range(2, 8), small + 1)
    steps = (small + 7.5) * jnp.log(small + 8) - (small + 0.5) * jnp.log(small) - jnp.log(product)
    inverse = 1 / jnp.where(is_small, x + _SHIFT, x)
    total = jnp.zeros_like(x)
    for coefficient in reversed(_SERIES):
        total = total * inverse**2 + coefficient
    return total * inverse + jnp.where(is_small, steps - 8, 0)
