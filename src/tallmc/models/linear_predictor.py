"""Models whose rows depend on θ through linear predictors z = (x·B, s), with any prior.

    f_i(θ) = f(z_i; y_i),   z_i = (B₁·x_i, …, B_K·x_i, s₁, …, s_E),   θ = (B, s)

K predictors come from the columns. E *shared* parameters, such as a dispersion or cut points, are
predictors of every row. A likelihood defines the potential of one row as a function of its K + E
predictors. Derivatives with respect to z come from automatic differentiation in K + E dimensions;
the rest is linear algebra. A gradient costs O(cK) per row with c columns, and no row needs a d×d
matrix. The compact gradient of a row is ∂f/∂z, K + E numbers. Models with one predictor and closed
forms are in `generalised_linear.py`.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..core.errors import InvalidInput
from ..core.layout import Layout
from ..core.linear_maps import AbstractLinearMap, dot
from ..rows.batch import Batch
from .base import AbstractModel, combined_remainders
from .likelihood import AbstractLikelihood
from .observations import RegressionRows, weighted
from .priors import AbstractPrior
from .probes import gaussian_positions, mean_square_projections


class LinearPredictor(AbstractModel):
    """A position holds the K coefficients of each column of x, then the shared parameters."""

    init: Float[Array, " d"]
    layout: Layout = eqx.field(static=True)
    likelihood: AbstractLikelihood
    prior: AbstractPrior
    """The prior of all of a position."""

    @property
    def log_concave(self) -> bool:
        return self.likelihood.log_concave and self.prior.log_concave

    @property
    def bounded(self) -> bool:
        return True

    @property
    def n_predictors(self) -> int:
        """K, the number of predictors from columns."""
        return self.likelihood.n_predictors

    def prior_potential(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        return self.prior.potential(position)

    def moves(self, move: Float[Array, " d"], rows: RegressionRows) -> Float[Array, "n k"]:
        """The change of z_i of every row when the position changes by `move`."""
        split = move.shape[0] - self.likelihood.n_shared
        by_column = dot(rows.x, move[:split].reshape(-1, self.n_predictors))
        shared = jnp.broadcast_to(move[split:], (rows.x.shape[0], self.likelihood.n_shared))
        return jnp.concatenate([by_column, shared], axis=1)

    def predictors(self, position: Float[Array, " d"], rows: RegressionRows) -> Float[Array, "n k"]:
        """z_i of every row."""
        z = self.moves(position, rows)
        return z if rows.offset is None else z.at[:, 0].add(rows.offset)

    def row_potentials(
        self, position: Float[Array, " d"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        z = self.predictors(position, rows)
        return weighted(rows, jax.vmap(self.likelihood.row_potential)(z, rows.y))

    def row_gradients(
        self, position: Float[Array, " d"], rows: RegressionRows
    ) -> Float[Array, "n k"]:
        return self._slopes(self.predictors(position, rows), rows)

    def linear_row_gradients(
        self, centre: Float[Array, " d"], move: Float[Array, " d"], rows: RegressionRows
    ) -> Float[Array, "n k"]:
        slopes, change = self._slopes_along(centre, self.moves(move, rows), rows)
        return slopes + change

    def remainders(
        self,
        order: int,
        position: Float[Array, " d"],
        centre: Float[Array, " d"],
        rows: RegressionRows,
    ) -> Float[Array, "n k"]:
        if order == 0:
            return self.row_gradients(position, rows)
        move = self.moves(position - centre, rows)
        moved = self._slopes(self.predictors(centre, rows) + move, rows)
        slopes, change = self._slopes_along(centre, move, rows)
        return moved - slopes if order == 1 else moved - slopes - change

    def sum_remainders(
        self, order: int, position: Float[Array, " d"], centre: Float[Array, " d"], batch: Batch
    ) -> Float[Array, " d"]:
        return combined_remainders(self, order, position, centre, batch)

    def mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        positions: Float[Array, "p d"],
        metric: AbstractLinearMap,
        rows: RegressionRows,
    ) -> Float[Array, " n"]:
        # (Cζ)ᵀr is the inner product of the compact r and the predictors of Cζ.
        def project(at: Float[Array, " d"], directions: Float[Array, "p d"]) -> Float[Array, "p n"]:
            along = jax.vmap(lambda direction: self.moves(direction, rows))(directions)
            return jnp.sum(along * self.remainders(order, at, centre, rows), axis=2)

        return mean_square_projections(project, positions, metric, rows.y.shape[0])

    def gaussian_mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        spread: AbstractLinearMap,
        width: Float[Array, ""],
        metric: AbstractLinearMap,
        rows: RegressionRows,
    ) -> Float[Array, " n"]:
        positions = gaussian_positions(centre, spread, width)
        return self.mean_square_remainders(order, centre, positions, metric, rows)

    def combine(
        self, compact: Float[Array, "n k"], rows: RegressionRows, weights: Float[Array, " n"]
    ) -> Float[Array, " d"]:
        weighted = weights[:, None] * compact
        by_column = dot(rows.x.T, weighted[:, : self.n_predictors])
        return jnp.concatenate(
            [by_column.ravel(), jnp.sum(weighted[:, self.n_predictors :], axis=0)]
        )

    def expand(self, compact: Float[Array, "n k"], rows: RegressionRows) -> Float[Array, "n d"]:
        by_column = rows.x[:, :, None] * compact[:, None, : self.n_predictors]
        return jnp.concatenate(
            [by_column.reshape(len(compact), -1), compact[:, self.n_predictors :]], axis=1
        )

    def norms(self, compact: Float[Array, "n k"], rows: RegressionRows) -> Float[Array, " n"]:
        by_column, shared = compact[:, : self.n_predictors], compact[:, self.n_predictors :]
        squares = jnp.sum(rows.x**2, axis=1) * jnp.sum(by_column**2, axis=1) + jnp.sum(
            shared**2, axis=1
        )
        return jnp.sqrt(squares)

    def block_hessian(
        self, position: Float[Array, " d"], rows: RegressionRows, weights: Float[Array, " n"]
    ) -> Float[Array, "d d"]:
        def column(along: Float[Array, " d"]) -> Float[Array, " d"]:
            _, change = self._slopes_along(position, self.moves(along, rows), rows)
            return self.combine(change, rows, weights)

        return lax.map(column, jnp.eye(self.dim, dtype=self.dtype))

    def curvature_norms(
        self, position: Float[Array, " d"], factor: Float[Array, "d c"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        def add_column(
            total: Float[Array, " n"], along: Float[Array, " d"]
        ) -> tuple[Float[Array, " n"], None]:
            _, change = self._slopes_along(position, self.moves(along, rows), rows)
            return total + self.norms(change, rows) ** 2, None

        total, _ = lax.scan(add_column, jnp.zeros_like(rows.y), factor.T)
        return jnp.sqrt(total)

    def row_lipschitz(self, rows: RegressionRows) -> Float[Array, " n"]:
        largest = self.likelihood.largest_curvature()
        if largest is None:
            raise InvalidInput(
                "posterior",
                "have Lipschitz gradients for this method",
                f"the {type(self.likelihood).__name__} likelihood, whose curvature has no bound",
                "Use weights='gradient' or 'curvature', and a fixed size.",
            )
        shared = float(self.likelihood.n_shared > 0)
        squares = jnp.maximum(jnp.sum(rows.x**2, axis=1), shared)
        return weighted(rows, jnp.asarray(largest, self.dtype) * squares)

    def _slopes(self, z: Float[Array, "n k"], rows: RegressionRows) -> Float[Array, "n k"]:
        return weighted(rows, jax.vmap(jax.grad(self.likelihood.row_potential))(z, rows.y))

    def _slopes_along(
        self, position: Float[Array, " d"], move: Float[Array, "n k"], rows: RegressionRows
    ) -> tuple[Float[Array, "n k"], Float[Array, "n k"]]:
        """∂f/∂z at `position`, and its first-order change when z moves by `move`."""
        z = self.predictors(position, rows)
        return jax.jvp(lambda at: self._slopes(at, rows), (z,), (move,))
