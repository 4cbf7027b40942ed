"""Generalised linear models with one predictor and closed forms.

    f_i(θ) = w_i f(z_i; y_i),   z_i = x_iᵀθ + o_i
    ∇f_i = w_i f'(z_i) x_i,     ∇²f_i = w_i f''(z_i) x_i x_iᵀ

The compact gradient of a row is the scalar w_i f'(z_i). With w_i = 1, ‖∇f_i‖ = |f'|‖x_i‖,
tr(H_i Σ H_iᵀ) = f''² ‖x_i‖² x_iᵀΣx_i and L_i = sup f'' · ‖x_i‖² (putcha-2023, appendix C). For
Gaussian θ the predictor z_i is Gaussian, so means over θ of a function of one row are
one-dimensional integrals. Gauss–Hermite quadrature computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..core.errors import InvalidInput
from ..core.layout import Layout
from ..core.linear_maps import AbstractLinearMap, dot
from ..rows.batch import Batch
from . import fused
from .base import AbstractModel, combined_remainders
from .families import AbstractFamily
from .observations import RegressionRows, weighted
from .priors import AbstractPrior

_QUADRATURE_NODES = 24


class GeneralisedLinear(AbstractModel):
    """A generalised linear model with one linear predictor.

    `tallmc.models` builds its posteriors.
    """

    init: Float[Array, " d"]
    layout: Layout = eqx.field(static=True)
    family: AbstractFamily
    prior: AbstractPrior

    @property
    def log_concave(self) -> bool:
        return self.prior.log_concave

    @property
    def bounded(self) -> bool:
        return True

    def predictors(self, position: Float[Array, " d"], rows: RegressionRows) -> Float[Array, " n"]:
        """z_i of every row."""
        z = dot(rows.x, position)
        return z if rows.offset is None else z + rows.offset

    def prior_potential(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        return self.prior.potential(position)

    def row_potentials(
        self, position: Float[Array, " d"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        return weighted(rows, self.family.potential(self.predictors(position, rows), rows.y))

    def row_gradients(
        self, position: Float[Array, " d"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        return weighted(rows, self.family.slope(self.predictors(position, rows), rows.y))

    def linear_row_gradients(
        self, centre: Float[Array, " d"], move: Float[Array, " d"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        z = self.predictors(centre, rows)
        change = self.family.curvature(z, rows.y) * dot(rows.x, move)
        return weighted(rows, self.family.slope(z, rows.y) + change)

    def remainders(
        self,
        order: int,
        position: Float[Array, " d"],
        centre: Float[Array, " d"],
        rows: RegressionRows,
    ) -> Float[Array, " n"]:
        if order == 0:
            return self.row_gradients(position, rows)
        remainders = self._remainders(order, self.predictors(centre, rows), rows.y)
        return weighted(rows, remainders(dot(rows.x, position - centre)))

    def mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        positions: Float[Array, "k d"],
        metric: AbstractLinearMap,
        rows: RegressionRows,
    ) -> Float[Array, " n"]:
        z = self.predictors(centre, rows)
        moves = dot(rows.x, (positions - centre).T)
        mean_square = jnp.mean(
            jax.vmap(self._remainders(order, z, rows.y), 1, 1)(moves) ** 2, axis=1
        )
        squares = weighted(rows, weighted(rows, mean_square))
        return squares * jnp.sum(metric.pull(rows.x) ** 2, axis=1)

    def gaussian_mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        spread: AbstractLinearMap,
        width: Float[Array, ""],
        metric: AbstractLinearMap,
        rows: RegressionRows,
    ) -> Float[Array, " n"]:
        z = self.predictors(centre, rows)
        sd = width * jnp.linalg.norm(spread.pull(rows.x), axis=1)
        remainders = self._remainders(order, z, rows.y)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_NODES)

        def add_node(
            total: Float[Array, " n"], node: tuple[Array, Array]
        ) -> tuple[Float[Array, " n"], None]:
            at, weight = node
            return total + weight * remainders(at * sd) ** 2, None

        quadrature = (
            jnp.asarray(nodes, self.dtype),
            jnp.asarray(weights / weights.sum(), self.dtype),
        )
        mean_square, _ = lax.scan(add_node, jnp.zeros_like(z), quadrature)
        squares = weighted(rows, weighted(rows, mean_square))
        return squares * jnp.sum(metric.pull(rows.x) ** 2, axis=1)

    def _remainders(
        self, order: int, z: Float[Array, " n"], y: Float[Array, " n"]
    ) -> Callable[[Array], Float[Array, " n"]]:
        """f'(z + v) minus the first `order` terms of its Taylor series, as a function of v."""
        slope = self.family.slope(z, y) if order >= 1 else 0.0
        curvature = self.family.curvature(z, y) if order >= 2 else 0.0
        return lambda move: self.family.slope(z + move, y) - slope - curvature * move

    def sum_remainders(
        self, order: int, position: Float[Array, " d"], centre: Float[Array, " d"], batch: Batch
    ) -> Float[Array, " d"]:
        if batch.packed is None or batch.indices is None or not fused.is_worth_it(batch.n_rows):
            return combined_remainders(self, order, position, centre, batch)

        def compact(z: Sequence[Float[Array, " n"]], y: Float[Array, " n"]) -> Float[Array, " n"]:
            return self._remainders(order, z[0], y)(z[1])

        vectors = jnp.stack([centre, position - centre])
        return fused.weighted_row_sum(compact, batch.packed, batch.indices, batch.weights, vectors)

    def combine(
        self, compact: Float[Array, " n"], rows: RegressionRows, weights: Float[Array, " n"]
    ) -> Float[Array, " d"]:
        return dot(weights * compact, rows.x)

    def expand(self, compact: Float[Array, " n"], rows: RegressionRows) -> Float[Array, "n d"]:
        return compact[:, None] * rows.x

    def norms(self, compact: Float[Array, " n"], rows: RegressionRows) -> Float[Array, " n"]:
        return jnp.abs(compact) * jnp.linalg.norm(rows.x, axis=1)

    def block_hessian(
        self, position: Float[Array, " d"], rows: RegressionRows, weights: Float[Array, " n"]
    ) -> Float[Array, "d d"]:
        curvature = weights * self._curvatures(position, rows)
        return dot((rows.x * curvature[:, None]).T, rows.x)

    def curvature_norms(
        self, position: Float[Array, " d"], factor: Float[Array, "d k"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        return (
            jnp.abs(self._curvatures(position, rows))
            * jnp.linalg.norm(rows.x, axis=1)
            * jnp.linalg.norm(dot(rows.x, factor), axis=1)
        )

    def row_lipschitz(self, rows: RegressionRows) -> Float[Array, " n"]:
        largest = self.family.largest_curvature()
        if largest is None:
            family = type(self.family).__name__
            raise InvalidInput(
                "posterior",
                "have Lipschitz gradients for this method",
                f"the {family} family, whose curvature has no bound",
                "Use weights='gradient' or 'curvature', and a fixed size.",
            )
        return weighted(rows, largest.astype(self.dtype) * jnp.sum(rows.x**2, axis=1))

    def _curvatures(self, position: Float[Array, " d"], rows: RegressionRows) -> Float[Array, " n"]:
        return weighted(rows, self.family.curvature(self.predictors(position, rows), rows.y))
