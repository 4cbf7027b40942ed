"""Softmax regression with K + 1 classes. The first class is the baseline.

P(y = k | x) = e^{z_k} / Σ_j e^{z_j},   z₀ = 0,   z_k = B_k·x for k = 1, …, K
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..core.errors import check_int
from ..core.layout import Layout, layout_of
from ..rows.sharded import ShardedRows
from .design import check_prior_variance, regression_data
from .linear_predictor import AbstractLinearPredictor
from .posterior import ModelPosterior


class SoftmaxRegression(AbstractLinearPredictor):
    """Softmax regression; `softmax_regression` builds its posterior."""

    init: Float[Array, " d"]
    layout: Layout = eqx.field(static=True)
    prior_variance: Float[Array, ""] | Float[Array, " c"]
    """One number, or one per column of x."""
    n_shared = 0
    log_concave = True

    @property
    def n_predictors(self) -> int:
        return self.layout.shapes[0][1]

    def prior_potential(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        by_column = position.reshape(-1, self.n_predictors)
        return 0.5 * jnp.sum(jnp.sum(by_column**2, axis=1) / self.prior_variance)

    def row_potential(self, z: Float[Array, " k"], y: Float[Array, ""]) -> Float[Array, ""]:
        scores = jnp.concatenate([jnp.zeros(1, z.dtype), z])
        return jax.nn.logsumexp(scores) - jnp.sum(
            jnp.where(jnp.arange(len(scores)) == y, scores, 0)
        )

    def largest_curvature(self) -> float:
        return 0.25 if self.n_predictors == 1 else 0.5


def softmax_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    classes: int | None = None,
    *,
    response: str | None = None,
) -> ModelPosterior:
    """Bayesian softmax regression, y_i ∈ {0, 1, …, classes − 1}, B_jk ~ N(0, prior_variance).

    **Arguments:**

    - `X`: the design matrix, with its own intercept column; or the rows of a row store, from
      `tallmc.rows.open`.
    - `y`: the class of each row. Class 0 is the baseline, whose coefficients are zero.
    - `prior_variance`: a number, or one per column.
    - `classes`: the number of classes; by default one more than the largest y.
    - `response`: the name of the response, if X is a row store; then there is no `y`.

    **Returns:** a posterior with the parameter `beta`, of shape (columns, classes − 1).

    **Raises:** `InvalidInput` if y is not a class number in every row, or X is not a finite matrix.

    >>> X = [[1.0, 0.5], [1.0, -2.0], [1.0, 1.5]]
    >>> posterior = softmax_regression(X, [0, 2, 1], prior_variance=10.0)
    >>> posterior.layout.shapes
    ((2, 2),)
    """
    data = regression_data(X, y, response)
    known = check_int("classes", int(data.y_high) + 1 if classes is None else classes, 2)
    data.check_response(
        f"be a class (0 to {known - 1}) in every row", lambda y: (y >= 0) & (y < known)
    )
    variance = check_prior_variance(prior_variance, data.n_columns, data.dtype)
    layout, init = layout_of({"beta": jnp.zeros((data.n_columns, known - 1), data.dtype)})
    model = SoftmaxRegression(init=init, layout=layout, prior_variance=variance)
    return ModelPosterior(model, data.rows)
