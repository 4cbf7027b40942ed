"""Remainders of models with several predictors: R_i is a function of Δz_i = J_i u.

    |D_i| ≤ sup |D³f[J_i u, J_i u, J_i u]| · M(u, u'),   ‖u‖ ≤ 1

The supremum over the box |Δz_k| ≤ ‖w_ik‖r, with the rows w_ik of J_i and the radius r of
`radius.py`, comes from the likelihood (`models/cubic_bound.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...anchor.anchor import Anchor
from ...core.linear_maps import AbstractLinearMap
from ...models.cubic_bound import AbstractCubicBound
from ...models.linear_predictor import LinearPredictor
from ...models.observations import RegressionRows, weighted
from .growth import growth
from .quadrature import remainder
from .radius import covering, factor_beyond, radius_of
from .remainders import AbstractRemainders

_ROUNDING = 1 + 1e-4


class PredictorRemainders(AbstractRemainders):
    """Remainders of order 2 of a model with several predictors."""

    model: LinearPredictor
    order: int = eqx.field(static=True)
    cubic: AbstractCubicBound
    anchor: Float[Array, " d"]
    metric: AbstractLinearMap
    radius: Float[Array, ""]
    """r."""
    bounded: bool = eqx.field(static=True)
    """Whether there is a bound beyond the radius."""

    @classmethod
    def at(
        cls,
        model: LinearPredictor,
        cubic: AbstractCubicBound,
        anchor: Anchor,
        metric: AbstractLinearMap,
    ) -> PredictorRemainders:
        """Remainders at the anchor, with a radius that positions hardly ever leave."""
        zero = jnp.zeros(_width(model), model.dtype)
        gram = jnp.eye(len(zero), dtype=model.dtype)
        beyond = cubic.largest_cubic(zero, zero + jnp.inf, gram, jnp.ones((), model.dtype))
        bounded = bool(jnp.isfinite(beyond))
        radius = jnp.asarray(radius_of(model.dim, bounded), model.dtype)
        return cls(model, 2, cubic, anchor.position, metric, radius, bounded)

    def values(self, moves: Float[Array, "m d"], rows: RegressionRows) -> Float[Array, "m n"]:
        anchored, potential = self.model.predictors(self.anchor, rows), _of_rows(self.model, rows)

        def of_move(move: Float[Array, " d"]) -> Float[Array, " n"]:
            along = self.model.moves(move, rows)
            first = _derivative(potential, along)
            second = _derivative(first, along)
            third = _derivative(second, along)
            expansion = potential(anchored) + first(anchored) + second(anchored) / 2
            found = remainder(
                2,
                lambda s: third(anchored + s * along),
                potential(anchored + along) - expansion,
                jax.vmap(self.cubic.distance)(anchored, along),
            )
            return weighted(rows, found)

        return jax.vmap(of_move)(moves)

    def constants(self, rows: RegressionRows) -> Float[Array, " n"]:
        gram = self._gram(rows)
        sizes = jnp.sqrt(jnp.diagonal(gram, axis1=1, axis2=2))
        z, largest = self.model.predictors(self.anchor, rows), jax.vmap(self.cubic.largest_cubic)
        found = largest(z, _ROUNDING * sizes * self.radius, gram, rows.y)
        if self.bounded:
            found = covering(found, largest(z, jnp.full_like(sizes, jnp.inf), gram, rows.y))
        return weighted(rows, _ROUNDING * found)

    def growth(self, here: Float[Array, " d"], there: Float[Array, " d"]) -> Float[Array, ""]:
        factor = factor_beyond(self.radius, self.bounded, here, there)
        return factor * growth(self.order, here, there)

    def _gram(self, rows: RegressionRows) -> Float[Array, "n k k"]:
        """J_i J_iᵀ, with C included in J_i."""

        def of_predictor(unit: Float[Array, " k"]) -> Float[Array, "n d"]:
            compact = jnp.broadcast_to(unit, (rows.y.shape[0], len(unit)))
            return self.metric.pull(self.model.expand(compact, rows))

        w = jax.vmap(of_predictor)(jnp.eye(_width(self.model), dtype=self.model.dtype))
        return jnp.einsum("knd,lnd->nkl", w, w, precision=jax.lax.Precision.HIGHEST)


def _width(model: LinearPredictor) -> int:
    return model.n_predictors + model.likelihood.n_shared


_RowFunction = Callable[[Float[Array, "n k"]], Float[Array, " n"]]


def _of_rows(model: LinearPredictor, rows: RegressionRows) -> _RowFunction:
    return lambda z: jax.vmap(model.likelihood.row_potential)(z, rows.y)


def _derivative(function: _RowFunction, along: Float[Array, "n k"]) -> _RowFunction:
    """The derivative of each row along its own direction."""
    return lambda z: jax.jvp(function, (z,), (along,))[1]
