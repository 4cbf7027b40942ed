"""Remainders of generalised linear models: R_i is a function of t = x_iᵀ(θ − θ̂).

    |D_i| ≤ sup |f⁽ᵏ⁺¹⁾| · ‖w_i‖ᵏ⁺¹ M(u, u'),   w_i = Cᵀx_i

The supremum is that over the interval ẑ_i ± ‖w_i‖r, with the radius r of `radius.py`.
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
from ...rows.base import AbstractRows
from .growth import growth
from .quadrature import remainder
from .radius import covering, factor_beyond, radius_of
from .remainders import AbstractRemainders

_EVERYWHERE = 1e4
"""A bounded derivative is constant, to rounding, beyond predictors of ±10⁴."""
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
        bounded = model.family.has_bounded(order + 1)
        radius = on_device(radius_of(model.dim, bounded), model.dtype)
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
            largest = covering(largest, beyond)
        return weighted(rows, _ROUNDING * largest * size ** (self.order + 1))

    def growth(self, here: Float[Array, " d"], there: Float[Array, " d"]) -> Float[Array, ""]:
        factor = factor_beyond(self.radius, self.bounded, here, there)
        return factor * growth(self.order, here, there)

    def width(self, source: AbstractRows) -> int:
        return self.model.width(source)
