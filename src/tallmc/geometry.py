"""Geometry: coordinates u with θ = C u, chosen so that the posterior is nearly isotropic in u.

The dynamics receive the gradient Cᵀ∇f and move by C times their step. CCᵀ is the preconditioner of
Langevin dynamics and the inverse mass matrix of dynamics with momentum. The geometry changes the
speed and the discretisation error, never the target.

A geometry and its map C are two classes: C is one of three maps (`AbstractLinearMap`), whatever
the way in which it was found, and dynamics, corrections and weights need the map only.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ._anchor.anchor import Anchor, AnchorLevel
from ._core.arrays import AbstractLinearMap, DenseMap, DiagonalMap, IdentityMap, check_numeric
from ._core.errors import InvalidInput
from ._core.part import Part
from ._rows.access import RowBlock
from .models.gaussian import check_positive_definite
from .models.model import AbstractModel
from .models.posterior import AbstractPosterior

__all__ = ["Dense", "Diagonal", "GeometryChoice", "Identity", "NoiseDiagonal"]


class GeometryChoice(Part, abc.ABC):
    """A geometry as chosen by the user; `prepare` computes C for a posterior."""

    @property
    def needs(self) -> AnchorLevel:
        """What must be known about the posterior before the first step."""
        return AnchorLevel.NOTHING

    @abc.abstractmethod
    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> AbstractLinearMap:
        """C for this posterior."""


@dataclasses.dataclass(frozen=True)
class Identity(GeometryChoice):
    """The parameters without a change of coordinates, C = I."""

    needs = AnchorLevel.NOTHING

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> IdentityMap:
        return IdentityMap()


@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal(GeometryChoice):
    """One scale per parameter, C = diag(scale). Lengths are in units of that scale.

    **Arguments:**

    - `scale`: positive numbers, one per parameter; by default 1/√H_jj from the Hessian at the mode.
    """

    scale: Any = None

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.HESSIAN if self.scale is None else AnchorLevel.NOTHING

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> DiagonalMap:
        if self.scale is None:
            assert anchor is not None and anchor.hessian is not None, "`needs` asks for a Hessian"
            assert anchor.covariance is not None, "`needs` asks for a Hessian"
            # An anchor that is not the mode may have negative curvature, but has a covariance.
            curvature, variance = jnp.diag(anchor.hessian), jnp.diag(anchor.covariance)
            from_hessian = 1 / jnp.sqrt(jnp.abs(curvature))
            return DiagonalMap(jnp.where(curvature > 0, from_hessian, jnp.sqrt(variance)))
        scale = np.asarray(check_numeric("scale", self.scale), np.float64)
        if scale.shape != (posterior.dim,) or not np.isfinite(scale).all() or not (scale > 0).all():
            rule = f"be positive and finite, one per parameter ({posterior.dim})"
            raise InvalidInput("scale", rule, self.scale)
        return DiagonalMap(jnp.asarray(scale, posterior.dtype))


@dataclasses.dataclass(frozen=True)
class NoiseDiagonal(GeometryChoice):
    """One scale per parameter, the inverse sd of the row gradients at the mode, C = diag(1/√V_jj).

        V_jj = Σ_i (g_ij − ḡ_j)²,   g_i = ∇f_i(θ̂)

    N V/n is the covariance of the simple estimate from n uniform draws at the mode θ̂. In these
    coordinates its diagonal is constant; correlations between parameters remain. The noise
    preconditioning of Sommer et al. (2026) estimates the same diagonal from the gradients of the
    run. Here one pass over the rows at the mode gives it, and C is fixed, so that it changes no
    target. If the model is right, V is near the Hessian, and the coordinates are near those of
    `Diagonal`.
    """

    paper = "Sommer, Diao, Robnik, Seljak and Rügamer (2026)"
    needs = AnchorLevel.MODE

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> DiagonalMap:
        assert anchor is not None, "NoiseDiagonal() needs an anchor"
        total = posterior.rows.reduce(
            _moments, posterior.model, anchor.position, width=posterior.width
        )
        squares, sums = total.float64()
        variance = squares - sums**2 / posterior.n_rows
        # A parameter on which no row depends has no noise; it keeps the scale of the others.
        noisy = variance > np.finfo(np.float32).eps * squares.max()
        typical = np.exp(np.mean(np.log(variance[noisy]))) if noisy.any() else 1.0
        scale = 1 / np.sqrt(np.where(noisy, variance, typical))
        return DiagonalMap(jnp.asarray(scale, posterior.dtype))


def _moments(
    block: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Σ g_ij² and Σ g_ij over the counted rows."""
    gradients = model.expand(model.row_gradients(position, block), block)
    gradients = jnp.where(counted[:, None], gradients, 0)
    return jnp.sum(gradients**2, axis=0), jnp.sum(gradients, axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(GeometryChoice):
    """A dense matrix CCᵀ. By default, lengths are in units of posterior standard deviations.

    **Arguments:**

    - `covariance`: CCᵀ, a symmetric positive definite matrix; by default Σ̂ at the mode.
    """

    covariance: Any = None

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.HESSIAN if self.covariance is None else AnchorLevel.NOTHING

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> DenseMap:
        if self.covariance is None:
            assert anchor is not None and anchor.factor is not None, "`needs` asks for a Hessian"
            return DenseMap(anchor.factor)
        matrix = check_positive_definite("covariance", self.covariance, posterior.dim)
        return DenseMap(jnp.asarray(np.linalg.cholesky(matrix), posterior.dtype))
