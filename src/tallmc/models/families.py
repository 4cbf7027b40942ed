"""Exponential families of a generalised linear model, as functions of the linear predictor z = xᵀθ.

A row's potential is f(z; y) up to a constant in θ. `slope` is ∂f/∂z and `curvature` is ∂²f/∂z², so
∇f_i = slope · x_i and ∇²f_i = curvature · x_i x_iᵀ. f is convex in z: `GeneralisedLinear` is
log-concave. No formula overflows while f is finite. The
potentials have no large terms that nearly cancel.
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class AbstractFamily(eqx.Module):
    """The potential of one row and its derivatives with respect to z."""

    @abc.abstractmethod
    def potential(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        """f(z; y)."""

    @abc.abstractmethod
    def slope(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        """∂f/∂z."""

    @abc.abstractmethod
    def curvature(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        """∂²f/∂z²."""

    @abc.abstractmethod
    def largest_curvature(self) -> Float[Array, ""] | None:
        """The supremum of the curvature over z; None if it is infinite."""


class Bernoulli(AbstractFamily):
    """y ∈ {0, 1}, P(y = 1) = 1/(1 + e^−z): f = log(1 + e^−sz) with s = 2y − 1."""

    def potential(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jax.nn.softplus((1 - 2 * y) * z)

    def slope(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        # Equals σ(z) − y, without the cancellation for a well classified row.
        sign = 1 - 2 * y
        return sign * jax.nn.sigmoid(sign * z)

    def curvature(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jax.nn.sigmoid(z) * jax.nn.sigmoid(-z)

    def largest_curvature(self) -> Float[Array, ""]:
        return jnp.asarray(0.25)


class Gaussian(AbstractFamily):
    """y ~ N(z, σ²) with σ² known: f = (y − z)²/2σ²."""

    noise_variance: Float[Array, ""]

    def potential(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return (y - z) ** 2 / (2 * self.noise_variance)

    def slope(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return (z - y) / self.noise_variance

    def curvature(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.broadcast_to(1 / self.noise_variance, z.shape)

    def largest_curvature(self) -> Float[Array, ""]:
        return 1 / self.noise_variance


class Poisson(AbstractFamily):
    """y ~ Poisson(e^z): f = e^z − yz minus its minimum. The curvature has no bound."""

    def potential(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        # f = y(e^t − 1 − t) with t = z − log y: as small as the row's misfit, even for large y.
        positive = y > 0
        t = z - jnp.log(jnp.where(positive, y, 1))
        return jnp.where(positive, y * (jnp.expm1(t) - t), jnp.exp(z))

    def slope(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.exp(z) - y

    def curvature(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.exp(z)

    def largest_curvature(self) -> None:
        return None
