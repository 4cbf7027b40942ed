"""Negative binomial regression with log link and unknown dispersion.

    E y = μ = e^{x·β},   Var y = μ + αμ²,   s = log α, shared by all rows
    −log p(y) = log Γ(r) − log Γ(y + r) + r log(1 + αμ) + y log(1 + 1/αμ) + log y!,   r = 1/α

For small α the logs of Γ nearly cancel. With Stirling's remainder δ (`log_gamma.py`),

    f = r log[(1 + αμ)/(1 + αy)] + y log[(1 + 1/αμ)/(1 + 1/αy)] + ½ log(1 + αy) + δ(r) − δ(y + r)
    c(y) = y − y log y + log y!
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..rows.sharded import ShardedRows
from .design import RegressionData, normal_prior, regression_data
from .likelihood import AbstractLikelihood
from .log_gamma import stirling_remainder
from .observations import Observations
from .posterior import ModelPosterior
from .priors import NormalPrior
from .regression import Shared, regression_posterior
from .starts import StartingPoint, least_squares, row_weights

_START_DISPERSIONS = (1e-2, 1e2)


class NegativeBinomial(AbstractLikelihood):
    """Counts with Var y = μ + αμ²; z = (log μ, log α)."""

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
        log_mean, log_dispersion = z
        shape, log_odds = jnp.exp(-log_dispersion), log_mean + log_dispersion
        positive = y > 0
        at_best = jnp.log(jnp.where(positive, y, 1)) + log_dispersion
        failures = jax.nn.softplus(log_odds) - jnp.where(positive, jax.nn.softplus(at_best), 0)
        successes = jax.nn.softplus(-log_odds) - jax.nn.softplus(-at_best)
        remainders = stirling_remainder(shape) - stirling_remainder(y + shape)
        width = jnp.where(positive, 0.5 * jax.nn.softplus(at_best), 0)
        return shape * failures + y * successes + width + remainders

    def largest_curvature(self) -> None:
        return None

    @property
    def cubic_bound(self) -> None:
        return None

    def starting_point(self, rows: Observations) -> StartingPoint:
        weights, y = row_weights(rows), np.asarray(rows.y)
        beta, residuals = least_squares(rows, np.log(y + 0.5), weights)
        mean = np.exp(np.log(y + 0.5) - residuals)
        # E[(y − μ)² − μ] = αμ²
        excess = np.average((y - mean) ** 2 - mean, weights=weights)
        dispersion = excess / np.average(mean**2, weights=weights)
        return StartingPoint(beta, (math.log(np.clip(dispersion, *_START_DISPERSIONS)),))

    def constant(self, y: Float[Array, " n"]) -> Float[Array, " n"]:
        positive = y > 0
        count = jnp.where(positive, y, 1)
        return jnp.where(positive, count - count * jnp.log(count) + gammaln(count + 1), 0)

    def mean(self, z: Float[Array, "n 2"]) -> Float[Array, " n"]:
        return jnp.exp(z[:, 0])

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 2"]) -> Float[Array, " n"]:
        of_rate, of_count = jax.random.split(key)
        shape = jnp.exp(-z[:, 1])
        rate = jax.random.gamma(of_rate, shape, dtype=z.dtype) * jnp.exp(z[:, 0] + z[:, 1])
        return jax.random.poisson(of_count, rate).astype(z.dtype)


def negative_binomial_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    *,
    response: str | None = None,
    weights: ArrayLike | str | None = None,
    offset: ArrayLike | str | None = None,
) -> ModelPosterior:
    """Bayesian negative binomial regression, β_j ~ N(0, prior_variance), log α ~ N(0, 4).

    **Arguments:**

    - `X`: the design matrix, with its own intercept column, as an array or a data frame; or the
      rows of a row store, from `tallmc.rows.open`.
    - `y`: a count (0, 1, 2, …) per row.
    - `prior_variance`: a number, or one per column.
    - `response`: the name of the response, if X is a row store; then there is no `y`.
    - `weights`: how many times each row counts; for a row store the name of a column.
    - `offset`: a number per row that is added to its predictor; for a row store the name of a
      column.

    **Returns:** a posterior with the parameters `beta` and `log_dispersion`.

    **Raises:** `InvalidInput` if y is not a count in every row, or X is not a finite matrix.

    >>> X = [[1.0, 0.5], [1.0, -2.0], [1.0, 1.5]]
    >>> posterior = negative_binomial_regression(X, [0, 2, 7], prior_variance=10.0)
    >>> posterior.layout.names
    ('beta', 'log_dispersion')
    """
    data = regression_data(X, y, response, weights, offset)
    data.check_response("be a count (0, 1, 2, …) in every row", lambda y: y >= 0)
    prior = normal_prior(prior_variance, data)
    return regression_posterior(data, NegativeBinomial(), prior, shared=[log_dispersion(data)])


def log_dispersion(data: RegressionData) -> Shared:
    """log α where the search for the mode starts, and its prior N(0, 4)."""
    return Shared("log_dispersion", 0.0, NormalPrior(jnp.asarray(4.0, data.dtype)))
