"""Linear maps θ = C u: the identity, one scale per parameter, or a d×d matrix."""

from __future__ import annotations

import abc
import functools

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

# Some accelerators round float32 factors to eleven bits unless HIGHEST is requested.
dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


class AbstractLinearMap(eqx.Module):
    """A map C, applied to gradients and to moves."""

    @abc.abstractmethod
    def n_columns(self, n_rows: int) -> int:
        """The number of columns of C, which has `n_rows` rows."""

    @abc.abstractmethod
    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        """Cᵀ∇f."""

    @abc.abstractmethod
    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        """C v."""

    @abc.abstractmethod
    def solve(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        """C⁻¹ v."""


class IdentityMap(AbstractLinearMap):
    """C = I."""

    def n_columns(self, n_rows: int) -> int:
        return n_rows

    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return gradient

    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return move

    def solve(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return move


class DiagonalMap(AbstractLinearMap):
    """C = diag(scale)."""

    scale: Float[Array, " d"]

    def n_columns(self, n_rows: int) -> int:
        return n_rows

    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return self.scale * gradient

    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return self.scale * move

    def solve(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return move / self.scale


class DenseMap(AbstractLinearMap):
    """C = factor, a d×d matrix."""

    factor: Float[Array, "d d"]

    def n_columns(self, n_rows: int) -> int:
        return n_rows

    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return dot(gradient, self.factor)

    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        # On CPUs, a row-major matrix times a vector takes a third of the time of the other order.
        return dot(self.factor, move.T).T

    def solve(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return jnp.linalg.solve(self.factor, move.T).T
