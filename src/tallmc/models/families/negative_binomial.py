"""Negative binomial regression with log link and unknown dispersion.

    E y = μ = e^{x·β},   Var y = μ + αμ²,   s = log α, shared by all rows
    −log p(y) = log Γ(r) − log Γ(y + r) + r log(1 + αμ) + y log(1 + 1/αμ) + log y!,   r = 1/α

For small α the logs of Γ nearly cancel. With Stirling's remainder δ (`likelihood.py`),

    f = r log[(1 + αμ)/(1 + αy)] + y log[(1 + 1/αμ)/(1 + 1/αy)] + ½ log(1 + αy) + δ(r) − δ(y + r)
    c(y) = y − y log y + log y!
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..._core.arrays import Scalar
from ..._rows.access import PerRow
from ..._rows.sharded import ShardedRows
from ..design import Observations, RegressionData
from ..likelihood import (
    AbstractLikelihood,
    StartingPoint,
    least_squares,
    row_weights,
    softplus,
    stirling_remainder,
)
from ..posterior import ModelPosterior
from ..priors import NormalPrior
from ..regression import Family, Shared
from .poisson import count_constant

_START_DISPERSIONS = (1e-2, 1e2)


class NegativeBinomial(AbstractLikelihood):
    """Counts with Var y = μ + αμ²; z = (log μ, log α)."""

    response = "count"

    n_shared = 1

    def potential(self, z: Float[Array, " 2"], y: Scalar) -> Scalar:
        log_mean, log_dispersion = z
        shape, log_odds = jnp.exp(-log_dispersion), log_mean + log_dispersion
        positive = y > 0
        at_best = jnp.log(jnp.where(positive, y, 1)) + log_dispersion
        failures = softplus(log_odds) - jnp.where(positive, softplus(at_best), 0)
        successes = softplus(-log_odds) - softplus(-at_best)
        remainders = stirling_remainder(shape) - stirling_remainder(y + shape)
        width = jnp.where(positive, 0.5 * softplus(at_best), 0)
        return shape * failures + y * successes + width + remainders

    def starting_point(self, block: Observations) -> StartingPoint:
        weights, y = row_weights(block), np.asarray(block.y)
        beta, residuals = least_squares(block, np.log(y + 0.5), weights)
        mean = np.exp(np.log(y + 0.5) - residuals)
        # E[(y − μ)² − μ] = αμ²
        excess = np.average((y - mean) ** 2 - mean, weights=weights)
        dispersion = excess / np.average(mean**2, weights=weights)
        return StartingPoint(beta, (math.log(np.clip(dispersion, *_START_DISPERSIONS)),))

    def constant(self, y: PerRow, trials: Any = None) -> PerRow:
        return count_constant(y)

    def mean(self, z: Float[Array, "n 2"]) -> PerRow:
        return jnp.exp(z[:, 0])

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 2"], trials: Any = None) -> PerRow:
        of_rate, of_count = jax.random.split(key)
        shape = jnp.exp(-z[:, 1])
        rate = jax.random.gamma(of_rate, shape, dtype=z.dtype) * jnp.exp(z[:, 0] + z[:, 1])
        return jax.random.poisson(of_count, rate).astype(z.dtype)


def _shared(data: RegressionData, classes: int) -> list[Shared]:
    return [Shared("log_dispersion", 0.0, NormalPrior(jnp.asarray(4.0, data.dtype)))]


FAMILY = Family(
    "negative_binomial",
    links=("log",),
    likelihood=lambda link, classes, noise: NegativeBinomial(),
    shared=_shared,
    shared_prior={"alpha": "log-normal: log alpha has mean 0 and sd 2"},
    other_names=("negativebinomial", "negbinomial", "nb"),
)


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

    **Arguments:** those of `logistic_regression`; `y` is a count (0, 1, 2, …) per row.

    **Returns:** a posterior with the parameters `beta` and `log_dispersion`.
    """
    return FAMILY.regression(X, y, prior_variance, response, weights, offset)
