"""Gamma regression with log link and unknown shape: E y = μ = e^z, Var y = μ²/α, s = log α.

    −log p(y) = α y/μ + α log μ − α log α + log Γ(α) − (α − 1) log y
    f = α(e^t − 1 − t) − ½ log α + δ(α),   t = log(y/μ),   c(y) = log y + ½ log 2π

f has no large terms that nearly cancel; δ is Stirling's remainder. With H(t) = eᵗ − 1 − t and
f = eˢH(t) + k(s), along (a, b)

    |D³f| ≤ eˢ(|b|³H + 3b²|a||H'| + (3|b|a² + |a|³)eᵗ) + |b|³|k⁽³⁾|

k(s) = δ(eˢ) − s/2 has |k⁽³⁾| < 0.047 for all s. There is no bound for all z.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..._core.arrays import Matrix, Scalar
from ..._rows.access import PerRow
from ..._rows.sharded import ShardedRows
from ..design import Observations, RegressionData
from ..likelihood import (
    AbstractLikelihood,
    Predictors,
    StartingPoint,
    largest_between,
    least_squares,
    row_weights,
    stirling_remainder,
)
from ..posterior import ModelPosterior
from ..predictive import response_rule
from ..priors import LogHalfStudentTPrior
from ..regression import Family, Shared

_LEAST_VARIANCE = 1e-12
_LARGEST_NORMALISATION = 0.047
"""sup |k⁽³⁾|."""


class Gamma(AbstractLikelihood):
    """y ~ Gamma(α, α/μ); z = (log μ, log α)."""

    response = "positive"

    n_shared = 1

    def potential(self, z: Float[Array, " 2"], y: Scalar) -> Scalar:
        log_mean, log_shape = z
        shape, excess = jnp.exp(log_shape), jnp.log(y) - log_mean
        misfit = shape * (jnp.expm1(excess) - excess)
        return misfit - 0.5 * log_shape + stirling_remainder(shape)

    def bounded(self, order: int) -> bool | None:
        return False if order == 3 else None

    def largest_cubic(self, z: Predictors, reach: Predictors, gram: Matrix, y: Scalar) -> Scalar:
        a, b = jnp.sqrt(jnp.diagonal(gram))
        t = jnp.log(y) - z[0]
        low, high = t - reach[0], t + reach[0]
        misfit = largest_between(lambda t: jnp.expm1(t) - t, low, high, ())
        slope = largest_between(jnp.expm1, low, high, ())
        terms = b**3 * misfit + 3 * b**2 * a * slope + (3 * b + a) * a**2 * jnp.exp(high)
        found = jnp.exp(z[1] + reach[1]) * terms + b**3 * _LARGEST_NORMALISATION
        return jnp.where(jnp.all(jnp.isfinite(reach)), found, jnp.inf)

    def starting_point(self, block: Observations) -> StartingPoint:
        # log y has the variance ψ'(α), about 1/α for α ≥ 1.
        weights = row_weights(block)
        beta, residuals = least_squares(block, np.log(block.y), weights)
        variance = np.average(residuals**2, weights=weights)
        return StartingPoint(beta, (-math.log(max(variance, _LEAST_VARIANCE)),))

    def constant(self, y: PerRow, trials: Any = None) -> PerRow:
        return jnp.log(y) + 0.5 * math.log(2 * math.pi)

    def mean(self, z: Float[Array, "n 2"]) -> PerRow:
        return jnp.exp(z[:, 0])

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 2"], trials: Any = None) -> PerRow:
        shape = jnp.exp(z[:, 1])
        return jnp.exp(z[:, 0]) * jax.random.gamma(key, shape, dtype=z.dtype) / shape


def _shared(data: RegressionData, classes: int) -> list[Shared]:
    data.check_response(*response_rule("positive", 0), whole=False)
    one = jnp.ones((), data.dtype)
    return [Shared("log_shape", 0.0, LogHalfStudentTPrior(one, one))]


FAMILY = Family(
    "gamma",
    links=("log",),
    likelihood=lambda link, classes, noise: Gamma(),
    shared=_shared,
    shared_prior={"alpha": "half-Cauchy(1)"},
)


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

    **Arguments:** those of `logistic_regression`; `y` is a positive number per row.

    **Returns:** a posterior with the parameters `beta` and `log_shape`.
    """
    return FAMILY.regression(X, y, prior_variance, response, weights, offset)
