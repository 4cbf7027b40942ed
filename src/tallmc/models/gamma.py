"""Gamma regression with log link and unknown shape: E y = μ = e^z, Var y = μ²/α, s = log α.

    −log p(y) = α y/μ + α log μ − α log α + log Γ(α) − (α − 1) log y
    f = α(e^t − 1 − t) − ½ log α + δ(α),   t = log(y/μ),   c(y) = log y + ½ log 2π

f has no large terms that nearly cancel; δ is Stirling's remainder (`log_gamma.py`).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..rows.sharded import ShardedRows
from .design import RegressionData, normal_prior, regression_data
from .likelihood import AbstractLikelihood
from .log_gamma import stirling_remainder
from .observations import Observations
from .posterior import ModelPosterior
from .priors import LogHalfStudentTPrior
from .regression import Shared, regression_posterior
from .scale_bounds import GammaCubicBound
from .starts import StartingPoint, least_squares, row_weights

_LEAST_VARIANCE = 1e-12


class Gamma(AbstractLikelihood):
    """y ~ Gamma(α, α/μ); z = (log μ, log α)."""

    @property
    def n_predictors(self) -> int:
        return 1

    @property
    def n_shared(self) -> int:
        return 1

    @property
    def log_concave(self) -> bool:
        return False

    def row_potential(self, z: Float[Array, " 2"], y: Float[Array, ""]) -> Float[Array, ""]:
        log_mean, log_shape = z
        shape, excess = jnp.exp(log_shape), jnp.log(y) - log_mean
        misfit = shape * (jnp.expm1(excess) - excess)
        return misfit - 0.5 * log_shape + stirling_remainder(shape)

    def largest_curvature(self) -> None:
        return None

    @property
    def cubic_bound(self) -> GammaCubicBound:
        return GammaCubicBound()

    def starting_point(self, rows: Observations) -> StartingPoint:
        # log y has the variance ψ'(α), about 1/α for α ≥ 1.
        weights = row_weights(rows)
        beta, residuals = least_squares(rows, np.log(rows.y), weights)
        variance = np.average(residuals**2, weights=weights)
        return StartingPoint(beta, (-math.log(max(variance, _LEAST_VARIANCE)),))

    def constant(self, y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.log(y) + 0.5 * math.log(2 * math.pi)

    def mean(self, z: Float[Array, "n 2"]) -> Float[Array, " n"]:
        return jnp.exp(z[:, 0])

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 2"]) -> Float[Array, " n"]:
        shape = jnp.exp(z[:, 1])
        return jnp.exp(z[:, 0]) * jax.random.gamma(key, shape, dtype=z.dtype) / shape


def gamma_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    *,
    response: str | None = None,
    weights: ArrayLike | str | None = None,
    offset: ArrayLike | str | None = None,
) -> ModelPosterior:
    """Bayesian gamma regression with log link, y_i > 0, β_j ~ N(0, prior_variance).

    The shape α has the half-Cauchy prior of scale 1.

    **Arguments:**

    - `X`: the design matrix, with its own intercept column, as an array or a data frame; or the
      rows of a row store, from `tallmc.rows.open`.
    - `y`: one positive number per row.
    - `prior_variance`: a number, or one per column.
    - `response`: the name of the response, if X is a row store; then there is no `y`.
    - `weights`: how many times each row counts; for a row store the name of a column.
    - `offset`: a number per row that is added to its predictor; for a row store the name of a
      column.

    **Returns:** a posterior with the parameters `beta` and `log_shape`.

    **Raises:** `InvalidInput` if y is not positive in every row, or X is not a finite matrix.

    >>> X = [[1.0, 0.5], [1.0, -2.0], [1.0, 1.5]]
    >>> gamma_regression(X, [0.3, 2.0, 7.1], prior_variance=10.0).layout.names
    ('beta', 'log_shape')
    """
    data = regression_data(X, y, response, weights, offset)
    prior = normal_prior(prior_variance, data)
    return regression_posterior(data, Gamma(), prior, shared=[log_shape(data)])


def log_shape(data: RegressionData) -> Shared:
    """log α where the search for the mode starts, and its prior. Raises unless y is positive."""
    data.check_positive()
    one = jnp.ones((), data.dtype)
    return Shared("log_shape", 0.0, LogHalfStudentTPrior(one, one))
