"""Gaussian noise of unknown scale: y ~ N(z, σ²), s = log σ.  f = s + (y − z)² e^{−2s}/2"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .design import RegressionData
from .likelihood import AbstractLikelihood
from .observations import Observations
from .priors import NormalPrior
from .regression import Shared
from .scale_bounds import GaussianCubicBound

_LOG_SCALE_SD = 3.0


class GaussianScale(AbstractLikelihood):
    """y ~ N(z, σ²) with unknown σ; z = (mean, log σ)."""

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
        fitted, log_scale = z
        return log_scale + 0.5 * ((y - fitted) * jnp.exp(-log_scale)) ** 2

    def largest_curvature(self) -> None:
        return None

    @property
    def cubic_bound(self) -> GaussianCubicBound:
        return GaussianCubicBound()

    def starting_point(self, rows: Observations) -> None:
        return None

    def constant(self, y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.full_like(y, 0.5 * math.log(2 * math.pi))

    def mean(self, z: Float[Array, "n 2"]) -> Float[Array, " n"]:
        return z[:, 0]

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 2"]) -> Float[Array, " n"]:
        return z[:, 0] + jnp.exp(z[:, 1]) * jax.random.normal(key, z.shape[:1], z.dtype)


def log_scale_from(data: RegressionData, start: float) -> Shared:
    """log σ, where the search for the mode starts, with the prior N(log sd(y), 3²)."""
    log_sd = jnp.asarray(math.log(data.y_sd), data.dtype)
    prior = NormalPrior(jnp.asarray(_LOG_SCALE_SD**2, data.dtype), log_sd)
    return Shared("log_scale", math.log(start), prior)
