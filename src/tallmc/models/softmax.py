"""Softmax regression with K + 1 classes. The first class is the baseline.

P(y = k | x) = e^{z_k} / Σ_j e^{z_j},   z₀ = 0,   z_k = B_k·x for k = 1, …, K
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..core.arrays import to_floats
from ..core.errors import InvalidInput, check_int
from ..core.layout import Layout, layout_of
from ..rows.resident import ResidentRows
from .design import Observations, check_design, check_prior_variance, first_bad
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
    X: ArrayLike, y: ArrayLike, prior_variance: ArrayLike, classes: int | None = None
) -> ModelPosterior:
    """Bayesian softmax regression, y_i ∈ {0, 1, …, classes − 1}, B_jk ~ N(0, prior_variance).

    **Arguments:**

    - `X`: the design matrix, with its own intercept column.
    - `y`: the class of each row. Class 0 is the baseline, whose coefficients are zero.
    - `prior_variance`: a number, or one per column.
    - `classes`: the number of classes; by default one more than the largest y.

    **Returns:** a posterior with the parameter `beta`, of shape (columns, classes − 1).

    **Raises:** `InvalidInput` if y is not a class number in every row, or X is not a finite matrix.

    >>> X = [[1.0, 0.5], [1.0, -2.0], [1.0, 1.5]]
    >>> posterior = softmax_regression(X, [0, 2, 1], prior_variance=10.0)
    >>> posterior.layout.shapes
    ((2, 2),)
    """
    x, responses = check_design(X, y)
    classes = check_int("classes", int(responses.max()) + 1 if classes is None else classes, 2)
    bad = (responses != np.floor(responses)) | (responses < 0) | (responses >= classes)
    if bad.any():
        raise InvalidInput(
            "y", f"be a class (0 to {classes - 1}) in every row", first_bad(responses, bad)
        )
    variance = check_prior_variance(prior_variance, x.shape[1], x.dtype)
    layout, init = layout_of({"beta": jnp.zeros((x.shape[1], classes - 1), x.dtype)})
    rows = ResidentRows(Observations(x, to_floats("y", responses, x.dtype)))
    model = SoftmaxRegression(init=init, layout=layout, prior_variance=variance)
    return ModelPosterior(model, rows)
