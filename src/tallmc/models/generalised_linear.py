"""Logistic, Poisson and known-noise linear regression with independent Gaussian priors.

    f_i(θ) = f(x_iᵀθ; y_i),   ∇f_i = f'(z_i) x_i,   ∇²f_i = f''(z_i) x_i x_iᵀ,   f₀(θ) = Σ θ_j²/2v_j

The compact gradient of a row is the scalar f'(z_i). In closed form, ‖∇f_i‖ = |f'|‖x_i‖,
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
from jaxtyping import Array, ArrayLike, Float

from ..core.errors import InvalidInput
from ..core.layout import Layout, layout_of
from ..core.linear_maps import AbstractLinearMap, dot
from ..rows.batch import Batch
from ..rows.resident import ResidentRows
from ..rows.sharded import ShardedRows
from . import fused
from .base import AbstractModel, combined_remainders
from .design import Observations, RegressionData, check_prior_variance, regression_data
from .families import AbstractFamily, Bernoulli, Poisson
from .posterior import ModelPosterior

_QUADRATURE_NODES = 24


class GeneralisedLinear(AbstractModel):
    """A generalised linear model with one linear predictor.

    Build its posterior with `logistic_regression`, `linear_regression` or `poisson_regression`.
    """

    init: Float[Array, " d"]
    layout: Layout = eqx.field(static=True)
    family: AbstractFamily
    prior_variance: Float[Array, ""] | Float[Array, " d"]
    log_concave = True

    def prior_potential(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        return 0.5 * jnp.sum(position**2 / self.prior_variance)

    def row_potentials(
        self, position: Float[Array, " d"], rows: Observations
    ) -> Float[Array, " n"]:
        return self.family.potential(dot(rows.x, position), rows.y)

    def row_gradients(self, position: Float[Array, " d"], rows: Observations) -> Float[Array, " n"]:
        return self.family.slope(dot(rows.x, position), rows.y)

    def linear_row_gradients(
        self, centre: Float[Array, " d"], move: Float[Array, " d"], rows: Observations
    ) -> Float[Array, " n"]:
        z = dot(rows.x, centre)
        return self.family.slope(z, rows.y) + self.family.curvature(z, rows.y) * dot(rows.x, move)

    def remainders(
        self,
        order: int,
        position: Float[Array, " d"],
        centre: Float[Array, " d"],
        rows: Observations,
    ) -> Float[Array, " n"]:
        if order == 0:
            return self.row_gradients(position, rows)
        return self._remainders(order, dot(rows.x, centre), rows.y)(dot(rows.x, position - centre))

    def mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        positions: Float[Array, "k d"],
        metric: AbstractLinearMap,
        rows: Observations,
    ) -> Float[Array, " n"]:
        z = dot(rows.x, centre)
        moves = dot(rows.x, (positions - centre).T)
        mean_square = jnp.mean(
            jax.vmap(self._remainders(order, z, rows.y), 1, 1)(moves) ** 2, axis=1
        )
        return mean_square * jnp.sum(metric.pull(rows.x) ** 2, axis=1)

    def gaussian_mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        spread: AbstractLinearMap,
        width: Float[Array, ""],
        metric: AbstractLinearMap,
        rows: Observations,
    ) -> Float[Array, " n"]:
        z, sd = dot(rows.x, centre), width * jnp.linalg.norm(spread.pull(rows.x), axis=1)
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
        return mean_square * jnp.sum(metric.pull(rows.x) ** 2, axis=1)

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
        self, compact: Float[Array, " n"], rows: Observations, weights: Float[Array, " n"]
    ) -> Float[Array, " d"]:
        return dot(weights * compact, rows.x)

    def expand(self, compact: Float[Array, " n"], rows: Observations) -> Float[Array, "n d"]:
        return compact[:, None] * rows.x

    def norms(self, compact: Float[Array, " n"], rows: Observations) -> Float[Array, " n"]:
        return jnp.abs(compact) * jnp.linalg.norm(rows.x, axis=1)

    def block_hessian(
        self, position: Float[Array, " d"], rows: Observations, weights: Float[Array, " n"]
    ) -> Float[Array, "d d"]:
        curvature = weights * self.family.curvature(dot(rows.x, position), rows.y)
        return dot((rows.x * curvature[:, None]).T, rows.x)

    def curvature_norms(
        self, position: Float[Array, " d"], factor: Float[Array, "d k"], rows: Observations
    ) -> Float[Array, " n"]:
        curvature = self.family.curvature(dot(rows.x, position), rows.y)
        return (
            jnp.abs(curvature)
            * jnp.linalg.norm(rows.x, axis=1)
            * jnp.linalg.norm(dot(rows.x, factor), axis=1)
        )

    def row_lipschitz(self, rows: Observations) -> Float[Array, " n"]:
        largest = self.family.largest_curvature()
        if largest is None:
            family = type(self.family).__name__
            raise InvalidInput(
                "posterior",
                "have Lipschitz gradients for this method",
                f"the {family} family, whose curvature has no bound",
                "Use weights='gradient' or 'curvature', and a fixed size.",
            )
        return largest.astype(self.dtype) * jnp.sum(rows.x**2, axis=1)


def logistic_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    *,
    response: str | None = None,
) -> ModelPosterior:
    """Bayesian logistic regression, y_i ∈ {0, 1}, θ_j ~ N(0, prior_variance).

    **Arguments:**

    - `X`: the design matrix, with its own intercept column; or the rows of a row store, from
      `tallmc.rows.open`.
    - `y`: 0 or 1 per row.
    - `prior_variance`: a number, or one per coefficient.
    - `response`: the name of the response, if X is a row store; then there is no `y`.

    **Returns:** a posterior with the parameter `beta`.

    **Raises:** `InvalidInput` if y is not 0 or 1 in every row, or X is not a finite matrix.

    >>> X = [[1.0, 0.5], [1.0, -2.0], [1.0, 1.5]]
    >>> posterior = logistic_regression(X, [1, 0, 1], prior_variance=10.0)
    >>> posterior.n_rows, posterior.dim
    (3, 2)
    """
    data = regression_data(X, y, response)
    data.check_response("be 0 or 1 in every row", lambda y: (y == 0) | (y == 1))
    return regression(data, prior_variance, Bernoulli())


def poisson_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    *,
    response: str | None = None,
) -> ModelPosterior:
    """Bayesian Poisson regression with log link, y_i ∈ {0, 1, 2, …}, θ_j ~ N(0, prior_variance).

    The gradients are not Lipschitz, so adaptive sizes and Lipschitz weights do not apply.

    **Arguments:**

    - `X`: the design matrix, with its own intercept column; or the rows of a row store, from
      `tallmc.rows.open`.
    - `y`: a count per row.
    - `prior_variance`: a number, or one per coefficient.
    - `response`: the name of the response, if X is a row store; then there is no `y`.

    **Returns:** a posterior with the parameter `beta`.

    **Raises:** `InvalidInput` if y is not a count in every row, or X is not a finite matrix.

    >>> posterior = poisson_regression([[1.0], [1.0]], [2, 3], prior_variance=1.0)
    >>> posterior.gradient(posterior.init)  # Σ (e⁰ − y)
    Array([-3.], dtype=float32)
    """
    data = regression_data(X, y, response)
    data.check_response("be a count (0, 1, 2, …) in every row", lambda y: y >= 0)
    return regression(data, prior_variance, Poisson())


def regression(
    data: RegressionData, prior_variance: ArrayLike | None, family: AbstractFamily
) -> ModelPosterior:
    """The posterior of a regression with this family."""
    variance = check_prior_variance(prior_variance, data.n_columns, data.dtype)
    layout, init = layout_of({"beta": jnp.zeros(data.n_columns, data.dtype)})
    model = GeneralisedLinear(init=init, layout=layout, family=family, prior_variance=variance)
    rows = data.rows
    # The fused kernel cannot read parameters of the family, so rows are packed only without them.
    if isinstance(rows, ResidentRows) and not jax.tree.leaves(family):
        rows = ResidentRows(rows.columns, fused.pack(*rows.columns))
    return ModelPosterior(model, rows)
