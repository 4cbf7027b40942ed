"""Gaussian noise of unknown scale: y ~ N(z, σ²), s = log σ.  f = s + (y − z)² e^{−2s}/2"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .likelihood import AbstractLikelihood


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

    def constant(self, y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.full_like(y, 0.5 * math.log(2 * math.pi))

    def mean(self, z: Float[Array, "n 2"]) -> Float[Array, " n"]:
        return z[:, 0]

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 2"]) -> Float[Array, " n"]:
        return z[:, 0] + jnp.exp(z[:, 1]) * jax.random.normal(key, z.shape[:1], z.dtype)
