"""Tweedie regression with log link: zeros and positive numbers, E y = μ = e^z, Var y = φ μ^p.

A Poisson number of gamma variables, 1 < p < 2 (Dunn and Smyth, 2005). With α = (2 − p)/(p − 1),

    P(y = 0) = e^{−λ},   λ = μ^{2−p}/(φ(2 − p))
    p(y) = exp[−λ − y μ^{1−p}/(φ(p − 1))] Σ_{j≥1} W_j / y,
    log W_j = jα log(y/(p − 1)) − j(1 + α) log φ − j log(2 − p) − log j! − log Γ(jα)

The terms are largest near j = y^{2−p}/(φ(2 − p)). 45 of them around it are added: all integers
there as long as the terms have an sd below 4, otherwise points 0.25 sds apart, since sums of such
smooth terms are integrals. log p(y) is exact to 1e-6.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from ..._core.arrays import Scalar
from ..._rows.access import PerRow
from ..design import Observations, RegressionData
from ..likelihood import (
    AbstractLikelihood,
    StartingPoint,
    least_squares,
    row_weights,
    stirling_remainder,
)
from ..predictive import response_rule
from ..priors import NormalPrior
from ..regression import Family, Shared

_TERMS = 22  # on either side
_STEP = 0.25
_LOG_DISPERSION_SD, _LOGIT_POWER_SD = 5.0, 1.5
_START_POWER = 1.5


def _log_gamma(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Log Γ for x > 0, whose derivatives of any order are elementary."""
    return (x - 0.5) * jnp.log(x) - x + 0.5 * math.log(2 * math.pi) + stirling_remainder(x)


class Tweedie(AbstractLikelihood):
    """z = (log μ, log φ, logit(p − 1))."""

    response = "nonnegative"

    n_shared = 2

    def potential(self, z: Float[Array, " 3"], y: Scalar) -> Scalar:
        log_mean, log_dispersion, logit = z
        above, below = jax.nn.sigmoid(logit), jax.nn.sigmoid(-logit)  # p − 1 and 2 − p
        rate = jnp.exp(below * log_mean - log_dispersion) / below
        positive = y > 0
        log_y = jnp.log(jnp.where(positive, y, 1))
        tilt = jnp.exp(log_y - above * log_mean - log_dispersion) / above
        series = self._log_series(log_y, log_dispersion, above, below)
        return rate + jnp.where(positive, tilt - series + log_y, 0)

    def _log_series(
        self, log_y: Scalar, log_dispersion: Scalar, above: Scalar, below: Scalar
    ) -> Scalar:
        """log Σ W_j."""
        shape = below / above  # α
        centre = jnp.exp(below * log_y - log_dispersion) / below
        # Where the terms are is no part of the derivatives: the sum does not depend on it.
        centre, width = lax.stop_gradient((centre, jnp.sqrt(centre / (1 + shape))))
        step = jnp.maximum(1.0, _STEP * width)
        first = jnp.maximum(jnp.round(centre) - _TERMS * step, 1.0)
        j = first + step * jnp.arange(2 * _TERMS + 1, dtype=log_y.dtype)
        each = shape * (log_y - jnp.log(above)) - (1 + shape) * log_dispersion - jnp.log(below)
        terms = j * each - lax.lgamma(j + 1) - _log_gamma(j * shape)
        return jax.nn.logsumexp(terms) + jnp.log(step)

    def starting_point(self, block: Observations) -> StartingPoint:
        weights, y = row_weights(block), np.asarray(block.y)
        level = np.average(y, weights=weights)
        beta, _ = least_squares(block, np.log(y + 0.1 * level), weights)
        squares = np.average((y - level) ** 2, weights=weights)
        return StartingPoint(beta, (math.log(squares / level**_START_POWER), 0.0))

    def mean(self, z: Float[Array, "n 3"]) -> PerRow:
        return jnp.exp(z[:, 0])

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 3"], trials: Any = None) -> PerRow:
        of_number, of_size = jax.random.split(key)
        above, below = jax.nn.sigmoid(z[:, 2]), jax.nn.sigmoid(-z[:, 2])
        rate = jnp.exp(below * z[:, 0] - z[:, 1]) / below
        number = jax.random.poisson(of_number, rate).astype(z.dtype)
        scale = jnp.exp(z[:, 1] + above * z[:, 0]) * above
        shape = jnp.maximum(number, 1) * below / above
        size = jax.random.gamma(of_size, shape, dtype=z.dtype) * scale
        return jnp.where(number > 0, size, 0)


def _shared(data: RegressionData, classes: int) -> list[Shared]:
    data.check_response(*response_rule("nonnegative", 0), whole=False)
    sds = {"log_phi": _LOG_DISPERSION_SD, "logit_power": _LOGIT_POWER_SD}
    return [
        Shared(name, 0.0, NormalPrior(jnp.asarray(sd**2, data.dtype))) for name, sd in sds.items()
    ]


FAMILY = Family(
    "tweedie",
    links=("log",),
    likelihood=lambda link, classes, noise: Tweedie(),
    shared=_shared,
    shared_prior={
        "phi": "log-normal: log phi has mean 0 and sd 5",
        "power": "between 1 and 2: logit(power - 1) has mean 0 and sd 1.5",
    },
)
