"""The law of a response given the outputs of a function of the row, and its likelihood.

    z_i = g(θ, x_i),   y_i ~ p(· | z_i)

`OutputLikelihood` takes a block of rows, so that g is one matrix product per layer rather than one
per row.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .observations import Observations


class AbstractOutputLaw(eqx.Module):
    """p(y | z)."""

    @abc.abstractmethod
    def log_density(self, z: Float[Array, "n k"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        """log p(y | z) per row, with all constants."""

    @abc.abstractmethod
    def mean(self, z: Float[Array, "n k"]) -> Float[Array, "n ..."]:
        """E(y | z); for classes, the probability of each class."""

    @abc.abstractmethod
    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n k"]) -> Float[Array, " n"]:
        """A draw of y per row."""


class CategoricalOutput(AbstractOutputLaw):
    """P(y = k | z) ∝ e^{z_k}."""

    def log_density(self, z: Float[Array, "n k"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        chosen = jnp.arange(z.shape[1]) == y[:, None]
        return jnp.sum(jnp.where(chosen, jax.nn.log_softmax(z), 0), axis=1)

    def mean(self, z: Float[Array, "n k"]) -> Float[Array, "n k"]:
        return jax.nn.softmax(z)

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n k"]) -> Float[Array, " n"]:
        return jax.random.categorical(key, z).astype(z.dtype)


class GaussianOutput(AbstractOutputLaw):
    """y ~ N(z, noise variance), with a single output."""

    noise_variance: Float[Array, ""]

    def log_density(self, z: Float[Array, "n 1"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        squares = (y - z[:, 0]) ** 2 / self.noise_variance
        return -0.5 * (squares + jnp.log(2 * np.pi * self.noise_variance))

    def mean(self, z: Float[Array, "n 1"]) -> Float[Array, " n"]:
        return z[:, 0]

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 1"]) -> Float[Array, " n"]:
        noise = jax.random.normal(key, z.shape[:1], z.dtype)
        return z[:, 0] + jnp.sqrt(self.noise_variance) * noise


class OutputLikelihood(eqx.Module):
    """log p(y_i | g(θ, x_i)) of a block of rows."""

    outputs: Callable[[PyTree, Any], Float[Array, "n k"]]
    """g."""
    law: AbstractOutputLaw

    def __call__(self, params: PyTree, rows: Observations) -> Float[Array, " n"]:
        return self.law.log_density(self.outputs(params, rows.x), rows.y)
