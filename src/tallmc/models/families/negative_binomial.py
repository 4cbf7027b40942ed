"""Negative binomial regression with log link and unknown dispersion.

    E y = μ = e^{x·β},   Var y = μ + αμ²,   s = log α, shared by all rows
    −log p(y) = log Γ(r) − log Γ(y + r) + r log(1 + αμ) + y log(1 + 1/αμ) + log y!,   r = 1/α

For small α the logs of Γ nearly cancel. With Stirling's remainder δ (`likelihood.py`),

    f = r log[(1 + αμ)/(1 + αy)] + y log[(1 + 1/αμ)/(1 + 1/αy)] + ½ log(1 + αy) + δ(r) − δ(y + r)
    c(y) = y − y log y + log y!

The errors of the terms in α and y alone, 10⁻⁶ in float32, are the same in all rows with this y. So
that they do not add up, changes of f have a series of log Γ(y + r) − log Γ(r) in the change of r.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..._core.arrays import Scalar
from ..._rows.access import PerRow
from ..._rows.sharded import ShardedRows
from ..design import Observations, RegressionData
from ..likelihood import (
    AbstractLikelihood,
    StartingPoint,
    least_squares,
    remainder_derivative,
    row_weights,
    softplus,
    softplus_change,
    stirling_remainder,
)
from ..posterior import ModelPosterior
from ..priors import NormalPrior
from ..regression import Family, Shared
from .poisson import count_constant

_START_DISPERSIONS = (1e-2, 1e2)
_ORDER, _NEAR = 5, 0.1
"""Of the series in the change of r, and the relative change up to which it is used."""


class NegativeBinomial(AbstractLikelihood):
    """Counts with Var y = μ + αμ²; z = (log μ, log α)."""

    response = "count"

    n_shared = 1
    exact_changes = True

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

    def change(self, z: Float[Array, "n 2"], y: PerRow) -> Callable[[Float[Array, "n 2"]], PerRow]:
        potential, log_odds, shape = jax.vmap(self.potential), z.sum(axis=1), jnp.exp(-z[:, 1])
        terms = [_log_gamma_difference(order, shape, y) for order in range(1, _ORDER + 1)]
        at = shape, softplus(log_odds), terms, potential(z, y)
        shape, logarithm, terms, before = lax.optimization_barrier(at)
        failures = softplus_change(log_odds, jnp.zeros_like(y))
        successes = softplus_change(log_odds, jnp.ones_like(y))

        def by_series(t: Float[Array, "n 2"]) -> PerRow:
            moved, more = t.sum(axis=1), shape * jnp.expm1(-t[:, 1])
            series = jnp.zeros_like(y)
            for term in reversed(terms):
                series = (series + term) * more
            changes = (shape + more) * failures(moved) + y * successes(moved)
            return changes + more * logarithm - series

        def by_difference(t: Float[Array, "n 2"]) -> PerRow:
            return potential(z + t, y) - before

        return lambda t: lax.cond(jnp.max(jnp.abs(t[:, 1])) < _NEAR, by_series, by_difference, t)

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


def _log_gamma_difference(order: int, r: PerRow, y: PerRow) -> PerRow:
    """∂ⁿ/∂rⁿ [log Γ(y + r) − log Γ(r)]/n!, n = `order` ≥ 1."""
    n, x = order, y + r
    found = remainder_derivative(n, x) - remainder_derivative(n, r)
    found += (-1) ** n * math.factorial(n - 1) / 2 * (x**-n - r**-n)
    if n == 1:
        return found + jnp.log1p(y / r)
    found += (-1) ** n * math.factorial(n - 2) * (x ** (1 - n) - r ** (1 - n))
    return found / math.factorial(n)


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
