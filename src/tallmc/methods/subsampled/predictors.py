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
from ...core.arrays import on_device
from ...core.linear_maps import AbstractLinearMap
from ...models.cubic_bound import AbstractCubicBound
from ...models.linear_predictor import LinearPredictor
from ...models.observations import RegressionRows, weighted
from ...rows.base import AbstractRows
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

    @classmethod
    def at(
        cls,
        model: LinearPredictor,
        cubic: AbstractCubicBound,
        anchor: Anchor,
        metric: AbstractLinearMap,
    ) -> PredictorRemainders:
        """Remainders at the anchor, with a radius that positions hardly ever leave."""
        radius = on_device(radius_of(model.dim, cubic.is_global), model.dtype)
        return cls(model, 2, cubic, anchor.position, metric, radius)

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
        if self.cubic.is_global:
            found = covering(found, largest(z, jnp.full_like(sizes, jnp.inf), gram, rows.y))
        return weighted(rows, _ROUNDING * found)

    def growth(self, here: Float[Array, " d"], there: Float[Array, " d"]) -> Float[Array, ""]:
        factor = factor_beyond(self.radius, self.cubic.is_global, here, there)
        return factor * growth(self.order, here, there)

    def width(self, source: AbstractRows) -> int:
        # The rows of all J_i are the largest array.
        return max(self.model.width(source), _n_predictors(self.model) * self.model.dim)

    def _gram(self, rows: RegressionRows) -> Float[Array, "n k k"]:
        """J_i J_iᵀ, with C included in J_i."""

        def of_predictor(unit: Float[Array, " k"]) -> Float[Array, "n d"]:
            compact = jnp.broadcast_to(unit, (rows.y.shape[0], len(unit)))
            return self.metric.pull(self.model.expand(compact, rows))

        w = jax.vmap(of_predictor)(jnp.eye(_n_predictors(self.model), dtype=self.model.dtype))
        return jnp.einsum("knd,lnd->nkl", w, w, precision=jax.lax.Precision.HIGHEST)


def _n_predictors(model: LinearPredictor) -> int:
    """Predictors of a row, and parameters that all rows share."""
    return model.n_predictors + model.likelihood.n_shared


_RowFunction = Callable[[Float[Array, "n k"]], Float[Array, " n"]]


def _of_rows(model: LinearPredictor, rows: RegressionRows) -> _RowFunction:
    return lambda z: jax.vmap(model.likelihood.row_potential)(z, rows.y)


def _derivative(function: _RowFunction, along: Float[Array, "n k"]) -> _RowFunction:
    """The derivative of each row along its own direction."""
    return lambda z: jax.jvp(function, (z,), (along,))[1]
