"""Quantile regression: z is the τ-quantile of y, by an asymmetric Laplace likelihood.

    f = τu + h log(1 + e^{−u/h}) + log σ + log h B(τh, (1 − τ)h),   u = (y − z)/σ

The check function u(τ − 1[u < 0]) has a kink at u = 0, where no series exists. It is smoothed over
h = 0.1, which gives a proper density: that of the logarithm of an F variable (the loss of Fasiolo
et al., 2021). Its limit for h → 0 is the asymmetric Laplace law. Smoothing moves the quantiles of
normal noise by less than 0.002 of its sd. The likelihood is a loss, not the law of y: the spread of
the posterior is not calibrated.
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..._core.arrays import Scalar
from ..._core.errors import InvalidInput
from ..._rows.access import PerRow
from ..design import Observations, RegressionData
from ..likelihood import AbstractLikelihood, StartingPoint, robust_regression, softplus
from ..regression import Family, Shared
from .gaussian import LOG_SCALE_PRIOR, log_scale_from

_SMOOTHING = 0.1
_MEDIAN = 0.5


class SmoothedLaplace(AbstractLikelihood):
    """A smoothed asymmetric Laplace law; z = (quantile, log σ)."""

    quantile: float = eqx.field(static=True)
    """τ."""

    n_shared = 1
    comparable = False

    def potential(self, z: Float[Array, " 2"], y: Scalar) -> Scalar:
        location, log_scale = z
        u = (y - location) * jnp.exp(-log_scale)
        return self.quantile * u + _SMOOTHING * softplus(-u / _SMOOTHING) + log_scale

    def distance(self, z: Float[Array, " 2"], move: Float[Array, " 2"]) -> Scalar:
        units = jnp.stack([jnp.exp(-z[1]) / _SMOOTHING, jnp.ones_like(z[1])])
        return jnp.max(jnp.abs(units * move))

    def starting_point(self, block: Observations) -> StartingPoint | None:
        # The columns that fit the centre, since a column of ones need not be there.
        beta, scale = robust_regression(block)
        return None if scale == 0 else StartingPoint(beta, (math.log(scale / 2),))

    def constant(self, y: PerRow, trials: Any = None) -> PerRow:
        log_beta = sum(map(math.lgamma, self._shapes)) - math.lgamma(_SMOOTHING)
        return jnp.full_like(y, math.log(_SMOOTHING) + log_beta)

    def mean(self, z: Float[Array, "n 2"]) -> PerRow:
        return z[:, 0]

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 2"], trials: Any = None) -> PerRow:
        # e^{u/h} is a ratio of two gamma variables; their logs do not underflow.
        low, high = jax.random.split(key)
        of_low, of_high = (
            jax.random.loggamma(each, jnp.full(z.shape[:1], shape, z.dtype))
            for each, shape in zip((low, high), self._shapes, strict=True)
        )
        return z[:, 0] + jnp.exp(z[:, 1]) * _SMOOTHING * (of_high - of_low)

    @property
    def _shapes(self) -> tuple[float, float]:
        return self.quantile * _SMOOTHING, (1 - self.quantile) * _SMOOTHING


def _shared(data: RegressionData, classes: int) -> list[Shared]:
    if data.y_sd == 0:
        raise InvalidInput("y", "vary", "equal values")
    return [log_scale_from(data, data.y_sd)]


FAMILY = Family(
    "quantile",
    links=("identity",),
    likelihood=lambda link, classes, level: SmoothedLaplace(_MEDIAN if level is None else level),
    shared=_shared,
    shared_prior={"sigma": LOG_SCALE_PRIOR},
    other_names=("asymmetriclaplace", "median"),
)
