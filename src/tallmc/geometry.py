"""The shape of the space a dynamics moves in: coordinates u with θ = C u, in which the posterior should look round.

A dynamics sees the gradient Cᵀ∇f and moves by C times its step, so that CCᵀ is a preconditioner for Langevin dynamics and the
inverse mass matrix of those with momentum. It changes the speed and the discretisation error, never the target.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._anchor import Anchor, Needs
from ._arrays import check_numeric
from ._errors import InvalidInput
from ._posterior import AbstractPosterior
from ._rows import dot


class AbstractGeometry(eqx.Module):
    @abc.abstractmethod
    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        """Cᵀ∇f."""

    @abc.abstractmethod
    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        """C v."""


class IdentityGeometry(AbstractGeometry):
    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return gradient

    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return move


class DiagonalGeometry(AbstractGeometry):
    scale: Float[Array, " d"]

    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return self.scale * gradient

    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return self.scale * move


class DenseGeometry(AbstractGeometry):
    factor: Float[Array, "d d"]

    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return dot(gradient, self.factor)

    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return dot(self.factor, move.T).T  # a matrix by rows times a vector: on CPUs a third of the time of the other order


class GeometryChoice(abc.ABC):
    """What a method asks for; `prepare` makes it ready for one posterior."""

    @property
    @abc.abstractmethod
    def needs(self) -> Needs:
        """What must be known about the posterior before the first step."""

    @abc.abstractmethod
    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> AbstractGeometry:
        """The geometry for this posterior."""


@dataclasses.dataclass(frozen=True)
class Identity(GeometryChoice):
    """The parameters as they are."""

    @property
    def needs(self) -> Needs:
        return Needs.NOTHING

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> IdentityGeometry:
        return IdentityGeometry()


@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal(GeometryChoice):
    """A scale for each parameter: yours, or 1/√H_jj from the curvature at the mode. Step sizes are then in units of that scale.

    >>> Diagonal().needs.name, Diagonal([1.0, 0.1]).needs.name
    ('HESSIAN', 'NOTHING')
    """

    scale: Any = None

    @property
    def needs(self) -> Needs:
        return Needs.HESSIAN if self.scale is None else Needs.NOTHING

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> DiagonalGeometry:
        if self.scale is None:
            assert anchor is not None and anchor.hessian is not None, "a method that needs a Hessian is prepared with one"
            return DiagonalGeometry(1 / jnp.sqrt(jnp.diag(anchor.hessian)))
        scale = np.asarray(check_numeric("scale", self.scale), np.float64)
        if scale.shape != (posterior.dim,) or not np.isfinite(scale).all() or not (scale > 0).all():
            raise InvalidInput("scale", f"be positive and finite, one a parameter ({posterior.dim})", self.scale)
        return DiagonalGeometry(jnp.asarray(scale, posterior.dtype))


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(GeometryChoice):
    """A matrix CCᵀ: the covariance you give, or Σ̂ at the mode. Step sizes are then in units of posterior standard deviations."""

    covariance: Any = None

    @property
    def needs(self) -> Needs:
        return Needs.HESSIAN if self.covariance is None else Needs.NOTHING

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> DenseGeometry:
        if self.covariance is None:
            assert anchor is not None and anchor.factor is not None, "a method that needs a Hessian is prepared with one"
            return DenseGeometry(anchor.factor)
        matrix, d = np.asarray(check_numeric("covariance", self.covariance), np.float64), posterior.dim
        proper = matrix.shape == (d, d) and np.isfinite(matrix).all() and np.allclose(matrix, matrix.T, rtol=1e-6)
        if not proper or np.linalg.eigvalsh(matrix)[0] <= 0:
            raise InvalidInput("covariance", f"be a symmetric positive definite {d}×{d} matrix", self.covariance)
        return DenseGeometry(jnp.asarray(np.linalg.cholesky(matrix), posterior.dtype))
