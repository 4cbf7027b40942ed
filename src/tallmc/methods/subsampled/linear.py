"""Remainders of generalised linear models: R_i is a function of t = x_iᵀ(θ − θ̂).

    |D_i| ≤ sup |f⁽ᵏ⁺¹⁾| · ‖w_i‖ᵏ⁺¹ M(u, u'),   w_i = Cᵀx_i

Within the radius r of the anchor, the predictor stays between ẑ_i ± ‖w_i‖r, so the supremum over
this interval is enough. It is often a fraction of the supremum over all z, and it is finite for
Poisson regression too. Beyond the radius M is larger by a factor κ, and c_i is at least 1/κ of its
value for all z. A family whose derivative has no bound has no M there: such moves are rejected, so
the chain draws from the posterior within the radius.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...anchor.anchor import Anchor
from ...core.arrays import on_device
from ...core.linear_maps import AbstractLinearMap, dot
from ...models.generalised_linear import GeneralisedLinear
from ...models.observations import RegressionRows, weighted
from .growth import growth
from .quadrature import remainder
from .remainders import AbstractRemainders

_FACTOR_BEYOND = 16.0
"""κ."""
_EVERYWHERE = 1e4
"""A bounded derivative is constant, to rounding, beyond predictors of ±10⁴."""
_OFTEN_BEYOND, _NEVER_BEYOND = 1e-3, 1e-10
"""Chances that a Gaussian position is beyond the radius, with and without a bound there."""
_ROUNDING = 1 + 1e-5


class LinearRemainders(AbstractRemainders):
    """Remainders of a generalised linear model."""

    model: GeneralisedLinear
    order: int = eqx.field(static=True)
    anchor: Float[Array, " d"]
    metric: AbstractLinearMap
    radius: Float[Array, ""]
    """r."""
    bounded: bool = eqx.field(static=True)
    """Whether there is a bound beyond the radius."""

    @classmethod
    def at(
        cls, model: GeneralisedLinear, order: int, anchor: Anchor, metric: AbstractLinearMap
    ) -> LinearRemainders:
        """Remainders at the anchor, with a radius that positions hardly ever leave."""
        from scipy.special import chdtri  # a slow import

        bounded = model.family.has_bounded(order + 1)
        chance = _OFTEN_BEYOND if bounded else _NEVER_BEYOND
        radius = on_device(math.sqrt(chdtri(model.dim, chance)), model.dtype)
        return cls(model, order, anchor.position, metric, radius, bounded)

    def values(self, moves: Float[Array, "m d"], rows: RegressionRows) -> Float[Array, "m n"]:
        order, family, y = self.order, self.model.family, rows.y
        anchored = self.model.predictors(self.anchor, rows)
        terms = [
            family.derivative(power, anchored, y) / math.factorial(power)
            for power in range(order + 1)
        ]

        def of_move(t: Float[Array, " n"]) -> Float[Array, " n"]:
            expansion = sum(term * t**power for power, term in enumerate(terms))
            found = remainder(
                order,
                lambda s: family.derivative(order + 1, anchored + s * t, y) * t ** (order + 1),
                family.potential(anchored + t, y) - expansion,
                jnp.abs(t),
            )
            return weighted(rows, found)

        return jax.vmap(of_move)(dot(moves, rows.x.T))

    def constants(self, rows: RegressionRows) -> Float[Array, " n"]:
        family, y = self.model.family, rows.y
        size = jnp.linalg.norm(self.metric.pull(rows.x), axis=1)
        anchored, reach = self.model.predictors(self.anchor, rows), _ROUNDING * size * self.radius
        largest = family.largest_derivative(self.order + 1, anchored - reach, anchored + reach, y)
        if self.bounded:
            everywhere = jnp.full_like(anchored, _EVERYWHERE)
            beyond = family.largest_derivative(self.order + 1, -everywhere, everywhere, y)
            largest = jnp.maximum(largest, beyond / _FACTOR_BEYOND)
        return weighted(rows, _ROUNDING * largest * size ** (self.order + 1))

    def growth(self, here: Float[Array, " d"], there: Float[Array, " d"]) -> Float[Array, ""]:
        farthest = jnp.maximum(jnp.linalg.norm(here), jnp.linalg.norm(there))
        factor = jnp.where(farthest <= self.radius, 1, _FACTOR_BEYOND if self.bounded else jnp.inf)
        return factor * growth(self.order, here, there)
