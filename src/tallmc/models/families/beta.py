"""Beta regression for shares between 0 and 1: E y = μ = 1/(1 + e^−z), Var y = μ(1 − μ)/(1 + κ).

    y ~ Beta(μκ, (1 − μ)κ),   s = log κ
    f = κ KL − ½[s + log μ(1 − μ)] + δ(μκ) + δ((1 − μ)κ) − δ(κ)
    KL = μ log(μ/y) + (1 − μ) log((1 − μ)/(1 − y)),   c(y) = log y(1 − y) + ½ log 2π

δ is Stirling's remainder (`likelihood.py`): the logs of Γ, which nearly cancel, do not occur.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..._core.arrays import Scalar
from ..._rows.access import PerRow
from ..design import Observations, RegressionData
from ..likelihood import (
    AbstractLikelihood,
    StartingPoint,
    least_squares,
    row_weights,
    softplus,
    stirling_remainder,
)
from ..predictive import response_rule
from ..priors import NormalPrior
from ..regression import Family, Shared

_LOG_PRECISION_SD = 3.0
_START_PRECISIONS = (1e-1, 1e6)


class Beta(AbstractLikelihood):
    """y ~ Beta(μκ, (1 − μ)κ); z = (logit μ, log κ)."""

    response = "share"

    n_shared = 1

    def potential(self, z: Float[Array, " 2"], y: Scalar) -> Scalar:
        logit, log_precision = z
        mean, rest = jax.nn.sigmoid(logit), jax.nn.sigmoid(-logit)
        precision = jnp.exp(log_precision)
        log_mean, log_rest = -softplus(-logit), -softplus(logit)
        distance = mean * (log_mean - jnp.log(y)) + rest * (log_rest - jnp.log1p(-y))
        remainders = stirling_remainder(mean * precision) + stirling_remainder(rest * precision)
        widths = 0.5 * (log_precision + log_mean + log_rest)
        return precision * distance - widths + remainders - stirling_remainder(precision)

    def starting_point(self, block: Observations) -> StartingPoint:
        weights, y = row_weights(block), np.asarray(block.y)
        logits = np.log(y / (1 - y))
        beta, residuals = least_squares(block, logits, weights)
        # The variance of logit y is about 1/(μ(1 − μ)κ).
        mean = 1 / (1 + np.exp(residuals - logits))
        spread = float(np.average(residuals**2 * mean * (1 - mean), weights=weights)) + 1e-12
        low, high = _START_PRECISIONS
        return StartingPoint(beta, (math.log(min(max(1 / spread, low), high)),))

    def constant(self, y: PerRow, trials: Any = None) -> PerRow:
        return jnp.log(y) + jnp.log1p(-y) + 0.5 * math.log(2 * math.pi)

    def mean(self, z: Float[Array, "n 2"]) -> PerRow:
        return jax.nn.sigmoid(z[:, 0])

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 2"], trials: Any = None) -> PerRow:
        precision = jnp.exp(z[:, 1])
        one, other = (jax.nn.sigmoid(sign * z[:, 0]) * precision for sign in (1, -1))
        return jax.random.beta(key, one, other, dtype=z.dtype)


def _shared(data: RegressionData, classes: int) -> list[Shared]:
    data.check_response(*response_rule("share", 0), whole=False)
    variance = jnp.asarray(_LOG_PRECISION_SD**2, data.dtype)
    return [Shared("log_precision", 0.0, NormalPrior(variance))]


FAMILY = Family(
    "beta",
    links=("logit",),
    likelihood=lambda link, classes, noise: Beta(),
    shared=_shared,
    shared_prior={"kappa": "log-normal: log kappa has mean 0 and sd 3"},
)
