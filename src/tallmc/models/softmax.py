"""Softmax regression with K + 1 classes. The first class is the baseline.

P(y = k | x) = e^{z_k} / Σ_j e^{z_j},   z₀ = 0,   z_k = B_k·x for k = 1, …, K
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..core.errors import check_int
from ..rows.sharded import ShardedRows
from .design import normal_prior, regression_data
from .likelihood import AbstractLikelihood
from .observations import Observations
from .posterior import ModelPosterior
from .regression import regression_posterior
from .softmax_bound import SoftmaxCubicBound


class Softmax(AbstractLikelihood):
    """Classes 0 to K; z = (z₁, …, z_K)."""

    n_classes: int = eqx.field(static=True)

    @property
    def n_predictors(self) -> int:
        return self.n_classes - 1

    @property
    def n_shared(self) -> int:
        return 0

    @property
    def log_concave(self) -> bool:
        return True

    def row_potential(self, z: Float[Array, " k"], y: Float[Array, ""]) -> Float[Array, ""]:
        scores = jnp.concatenate([jnp.zeros(1, z.dtype), z])
        return jax.nn.logsumexp(scores) - jnp.sum(
            jnp.where(jnp.arange(len(scores)) == y, scores, 0)
        )

    def largest_curvature(self) -> float:
        return 0.25 if self.n_predictors == 1 else 0.5

    @property
    def cubic_bound(self) -> SoftmaxCubicBound:
        return SoftmaxCubicBound()

    def starting_point(self, rows: Observations) -> None:
        return None

    def constant(self, y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.zeros_like(y)

    def mean(self, z: Float[Array, "n k"]) -> Float[Array, "n classes"]:
        return jax.nn.softmax(_scores(z), axis=1)

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n k"]) -> Float[Array, " n"]:
        return jax.random.categorical(key, _scores(z), axis=1).astype(z.dtype)


def _scores(z: Float[Array, "n k"]) -> Float[Array, "n classes"]:
    return jnp.concatenate([jnp.zeros_like(z[:, :1]), z], axis=1)


def softmax_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    classes: int | None = None,
    *,
    response: str | None = None,
    weights: ArrayLike | str | None = None,
) -> ModelPosterior:
    """Bayesian softmax regression, y_i ∈ {0, 1, …, classes − 1}, B_jk ~ N(0, prior_variance).

    **Arguments:**

    - `X`: the design matrix, with its own intercept column, as an array or a data frame; or the
      rows of a row store, from `tallmc.rows.open`.
    - `y`: the class of each row. Class 0 is the baseline, whose coefficients are zero.
    - `prior_variance`: a number, or one per column.
    - `classes`: the number of classes; by default one more than the largest y.
    - `response`: the name of the response, if X is a row store; then there is no `y`.
    - `weights`: how many times each row counts; for a row store the name of a column.

    **Returns:** a posterior with the parameter `beta`, of shape (columns, classes − 1).

    **Raises:** `InvalidInput` if y is not a class number in every row, or X is not a finite matrix.

    >>> X = [[1.0, 0.5], [1.0, -2.0], [1.0, 1.5]]
    >>> posterior = softmax_regression(X, [0, 2, 1], prior_variance=10.0)
    >>> posterior.layout.shapes
    ((2, 2),)
    """
    data = regression_data(X, y, response, weights)
    known = check_int("classes", int(data.y_high) + 1 if classes is None else classes, 2)
    data.check_response(
        f"be a class (0 to {known - 1}) in every row", lambda y: (y >= 0) & (y < known)
    )
    return regression_posterior(data, Softmax(known), normal_prior(prior_variance, data, known - 1))
