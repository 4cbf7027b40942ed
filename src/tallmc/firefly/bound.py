"""A lower bound on the logistic likelihood that is Gaussian in the parameters and touches it at the anchor.

With m = xᵀθ̂ and u = xᵀ(θ − θ̂), the bound of Jaakkola and Jordan (1997) on L = σ(s), s = ±xᵀθ, that is tight at θ̂ has
log B = a s² + s/2 + c, a = −tanh(m/2)/4m. As log L and log B have the same value and slope at θ̂, for δ = θ − θ̂

    −log p(θ) − Σ_i log B_i(θ) = const + ∇f(θ̂)ᵀδ + ½ δᵀPδ,   P = ∇²f₀ + Σ_i (r_i/2) x_i x_iᵀ,   r = tanh(m/2)/m,

and, whatever the response, log L − log B is for u ≥ 0 (else turn the signs of m and u)

    g = r u²/4 − q u − log(1 + q (e^−u − 1)) ≥ 0,   q = 1/(1 + e^m).

Near the anchor this gap is of order u², and its rounding error in this form of order u.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._anchor import Anchor
from .._rows import dot, sum_rows
from ..models.glm import GeneralisedLinear, Observations


class Bound(eqx.Module):
    """Π B_i with the prior as one Gaussian around the anchor, and the gap between a row's likelihood and its bound."""

    posterior: GeneralisedLinear
    anchor: Float[Array, " d"]
    gradient: Float[Array, " d"]
    precision: Float[Array, "d d"]

    def known(self, position: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        """−log p(θ) − Σ log B_i(θ), up to a constant, and its gradient."""
        away = position - self.anchor
        change = dot(self.precision, away)
        return dot(self.gradient + change / 2, away), self.gradient + change

    def gaps(self, position: Float[Array, " d"], rows: Observations) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """log L_i − log B_i and its derivative by x_iᵀθ."""
        predictors = dot(rows.x, jnp.stack([self.anchor, position - self.anchor], axis=1))
        return gap(predictors[:, 0], predictors[:, 1])

    def chance_bright(self, position: Float[Array, " d"], rows: Observations) -> Float[Array, " n"]:
        """P(z_i = 1 | θ) = 1 − B_i/L_i."""
        return -jnp.expm1(-self.gaps(position, rows)[0])

    def bright_terms(self, position: Float[Array, " d"], rows: Observations) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """−log((L_i − B_i)/B_i) and its derivative by x_iᵀθ."""
        gaps, slopes = self.gaps(position, rows)
        chance = -jnp.expm1(-gaps)
        return -gaps - jnp.log(chance), -slopes / chance


def gap(m: Float[Array, " n"], u: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """log L − log B at m + u for the bound that touches at m, and its derivative by u."""
    sign = jnp.where(u < 0, -1, 1).astype(u.dtype)
    m, u = sign * m, sign * u
    r, q = _slope_ratio(m), jax.nn.sigmoid(-m)
    fall = q * jnp.expm1(-u)
    # Where q is near 1, then m < 0, 1 + fall is a rounding error: log(1 + e^(−m−u)) − log(1 + e^−m) instead.
    near = fall > -0.5
    other = q * (1 + jnp.exp(-jnp.abs(m + u))) - 1
    logarithm = jnp.where(near, 0, jnp.maximum(m, -u)) + jnp.log1p(jnp.where(near, fall, other))
    # A row at the anchor is never bright; the floor, far below what rounding leaves, keeps its logarithm finite.
    floor = jnp.finfo(u.dtype).eps ** 2
    return jnp.maximum(r * u**2 / 4 - q * u - logarithm, floor), sign * (r * u / 2 - q + jax.nn.sigmoid(-m - u))


def _slope_ratio(m: Float[Array, " n"]) -> Float[Array, " n"]:
    """tanh(m/2)/m."""
    small = jnp.abs(m) < 1e-4
    return jnp.where(small, 0.5 - m**2 / 24, jnp.tanh(m / 2) / jnp.where(small, 1, m))


def tangent_bound(posterior: GeneralisedLinear, anchor: Anchor) -> Bound:
    """The bound that touches at the anchor: a pass over the rows."""
    return Bound(posterior, anchor.position, anchor.gradient, _precision(posterior, anchor.position))


@eqx.filter_jit
def _precision(posterior: GeneralisedLinear, position: Float[Array, " d"]) -> Float[Array, "d d"]:
    """P."""

    def block_sum(rows: Observations) -> Float[Array, "d d"]:
        return dot((rows.x * (_slope_ratio(dot(rows.x, position)) / 2)[:, None]).T, rows.x)

    total = sum_rows(block_sum, posterior.data, posterior.width)
    return total.high + (total.low + jax.hessian(posterior.prior_potential)(position))
