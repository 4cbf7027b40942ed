"""Geometry: coordinates u with θ = C u, chosen so that the posterior is nearly isotropic in u.

The dynamics receive the gradient Cᵀ∇f and move by C times their step. CCᵀ is the preconditioner of
Langevin dynamics and the inverse mass matrix of dynamics with momentum. The geometry changes the
speed and the discretisation error, never the target.

A geometry and its map C are two classes: C is one of few maps (`AbstractLinearMap`), whatever
the way in which it was found, and dynamics, corrections and weights need the map only.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._anchor.anchor import Anchor, AnchorLevel
from ._core.arrays import (
    AbstractLinearMap,
    DenseMap,
    DiagonalMap,
    IdentityMap,
    Scalar,
    Vector,
    check_numeric,
    dot,
)
from ._core.errors import InvalidInput
from ._core.part import Part
from ._rows.access import RowBlock
from .models.gaussian import check_positive_definite
from .models.groups import back_solve, cholesky, factor_of, forward_solve, lower_inverse
from .models.model import AbstractModel, EffectTerm
from .models.posterior import AbstractPosterior

__all__ = ["Dense", "Diagonal", "GeometryChoice", "Identity", "NoiseDiagonal", "StandardEffects"]


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

    `scale` has positive numbers, one per parameter; by default 1/√H_jj of the Hessian at the mode.
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
    block: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Vector
) -> tuple[Vector, Vector]:
    """Σ g_ij² and Σ g_ij over the counted rows."""
    gradients = model.expand(model.row_gradients(position, block), block)
    gradients = jnp.where(counted[:, None], gradients, 0)
    return jnp.sum(gradients**2, axis=0), jnp.sum(gradients, axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(GeometryChoice):
    """A dense matrix CCᵀ. By default, lengths are in units of posterior standard deviations.

    `covariance` is CCᵀ, a symmetric positive definite matrix; by default Σ̂ at the mode.
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


# Group effects, standardised given their covariance Σ. At the anchor the rows say of the effects u
# of a group
#
#     Σ f_i = ½uᵀKu − rᵀu + …,   so that   u | Σ ≈ N(P⁻¹r, P⁻¹),   P = K + Σ⁻¹ = RRᵀ
#     u = R⁻ᵀ(R⁻¹r + η)
#
# η is nearly N(0, I) for every Σ: there is no funnel between log sds and effects. This is the
# non-centred form for effects of which the rows know nothing, K = 0, and close to the centred form
# for large K. A group of few rows and one of many each get the form that suits them.
#
# In these coordinates the Hessian of the effects has a diagonal of 1. Its curvatures are near 1 but
# for a few modes: all effects of one factor against those of another, or players of an era. With
# the effects first and the *core* of coefficients and log sds last:
#
#     H = [[A, B], [Bᵀ, E]],   A ≈ I + V(Λ − I)Vᵀ,   W = A⁻¹B,   S = E − BᵀW
#     C = [[I + V(Λ^(−½) − I)Vᵀ, −WS^(−½)], [0, S^(−½)]] diag(scale)

_LEAST_CURVATURE = 1e-3  # of directions of S, in units of 1/sd² of an effect given all others


class ArrowMap(AbstractLinearMap):
    """C, of an identity with few other modes, bordered by the rows of the core."""

    order: Int[Array, " d"]  # The effects, then the core
    places: Int[Array, " d"]  # The inverse of the order
    coupling: Float[Array, "o k"]  # W
    root: Float[Array, "k k"]  # S^(−½), transposed
    modes: Float[Array, "o m"]  # V
    sds: Float[Array, " m"]  # Λ^(−½)
    scale: Vector

    def _split(self, values: Float[Array, "*k d"]) -> tuple[Array, Array]:
        ordered = values[..., self.order]
        return ordered[..., : len(self.coupling)], ordered[..., len(self.coupling) :]

    def _joined(self, others: Array, core: Array) -> Float[Array, "*k d"]:
        return jnp.concatenate([others, core], axis=-1)[..., self.places]

    def _stretched(self, effects: Array, by: Float[Array, " m"]) -> Array:
        return effects + dot((by - 1) * dot(effects, self.modes), self.modes.T)

    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        effects, core = self._split(self.scale * move)
        core = dot(core, self.root.T)
        effects = self._stretched(effects, self.sds)
        return self._joined(effects - dot(core, self.coupling.T), core)

    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        effects, core = self._split(gradient)
        core = dot(core - dot(effects, self.coupling), self.root)
        return self.scale * self._joined(self._stretched(effects, self.sds), core)

    def solve(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        effects, core = self._split(move)
        effects = self._stretched(effects + dot(core, self.coupling.T), 1 / self.sds)
        return self._joined(effects, jnp.linalg.solve(self.root, core.T).T) / self.scale


class EffectMap(AbstractLinearMap):
    """Coordinates ζ: η in the place of group effects, and a linear map of them."""

    linear: ArrowMap
    information: Float[Array, " b"]  # K of each group, (G, r, r) flat, term after term
    score: Vector  # r of effects, else 0
    centre: Vector  # ζ near which the posterior is N(ζ, CCᵀ), approximately
    terms: tuple[tuple[int, int, int, int], ...] = eqx.field(static=True)
    """The fields of each `EffectTerm`; a store reads tuples."""

    @property
    def core(self) -> Int[Array, " k"]:
        """Where the parameters lie that are no effects."""
        return self.linear.order[len(self.linear.coupling) :]

    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return self.linear.push(move)

    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return self.linear.pull(gradient)

    def solve(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return self.linear.solve(move)

    def precisions(self, position: Vector) -> list[tuple[EffectTerm, Float[Array, "G r r"]]]:
        """P of the groups of each term; of a position or of ζ, whose log sds are the same."""
        found, at = [], 0
        for term in (EffectTerm(*term) for term in self.terms):
            shape = term.n_groups, term.n_columns, term.n_columns
            of_rows = self.information[at : at + math.prod(shape)].reshape(shape)
            inverse = lower_inverse(factor_of(term.hyper_of(position), term.n_columns))
            found.append((term, of_rows + dot(inverse.T, inverse)))
            at += of_rows.size
        return found

    def standardised(self, position: Vector) -> Vector:
        """ζ of a position."""
        found = position
        for term, precision in self.precisions(position):
            root, effects = cholesky(precision), term.by_group(position)
            eta = jnp.sum(root * effects[:, :, None], axis=1)
            eta = eta - forward_solve(root, term.by_group(self.score))
            found = found.at[term.effects].set(eta.ravel())
        return found

    def position(self, zeta: Vector) -> Vector:
        found = zeta
        for term, precision in self.precisions(zeta):
            root = cholesky(precision)
            shifted = forward_solve(root, term.by_group(self.score)) + term.by_group(zeta)
            found = found.at[term.effects].set(back_solve(root, shifted).ravel())
        return found

    def log_volume(self, position: Vector) -> Scalar:
        """log |∂θ/∂ζ|."""
        total = jnp.zeros((), position.dtype)
        for _, precision in self.precisions(position):
            root = cholesky(precision)
            total = total - jnp.sum(jnp.log(jnp.diagonal(root, axis1=1, axis2=2)))
        return total

    def gradient(self, zeta: Vector, gradient: Vector) -> Vector:
        """∇ of f(θ) − log |∂θ/∂ζ| with respect to ζ, from ∇f."""
        _, pullback = jax.vjp(lambda at: (self.position(at), self.log_volume(at)), zeta)
        return pullback((gradient, -jnp.ones((), zeta.dtype)))[0]

    # The motion in a standard normal potential is a rotation. What the rest of the potential does
    # is small, so that few gradients make a trajectory (Shahbaba et al., 2014).

    def coordinates(self, position: Vector) -> Vector:
        return self.solve(self.standardised(position) - self.centre)

    def placed(self, coordinates: Vector) -> Vector:
        return self.position(self.centre + self.push(coordinates))

    def flow(self, coordinates: Vector, momentum: Vector, time: Scalar) -> tuple[Vector, Vector]:
        along, across = jnp.cos(time), jnp.sin(time)
        return along * coordinates + across * momentum, along * momentum - across * coordinates

    def force(self, coordinates: Vector, position: Vector, gradient: Vector) -> Vector:
        return self.pull_at(position, gradient) - coordinates

    def pull_at(self, position: Vector, gradient: Vector) -> Vector:
        """Cᵀ∇ of the potential in ζ, from ∇f."""
        return self.pull(self.gradient(self.standardised(position), gradient))


@dataclasses.dataclass(frozen=True, eq=False)
class StandardEffects(GeometryChoice):
    """Group effects standardised given their sd, and what they have in common with the others.

    Trajectories of `HMC` move in these coordinates; other dynamics cannot. The default method finds
    the arrays.

    **Arguments:**

    - `information`: K, the curvature of all rows in the effects of each group at the anchor,
      (G, r, r) flat, term after term.
    - `score`: r, zero for parameters that are no effects.
    - `coupling`: W, how the effects make up for moves of the k other parameters, (d − k, k).
    - `precision`: S of the other parameters, (k, k).
    - `modes`: V, orthonormal directions of effects, (d − k, m).
    - `curvatures`: Λ along them.
    - `centre`: the mean of draws in ζ.
    - `scale`: the sds of draws in these coordinates.
    """

    information: Any
    score: Any
    coupling: Any
    precision: Any
    modes: Any
    curvatures: Any
    centre: Any
    scale: Any

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> EffectMap:
        terms = posterior.model.effect_terms()
        if not terms:
            raise InvalidInput("posterior", "have group effects for StandardEffects", "none")
        everything = np.arange(posterior.dim)
        effects = np.concatenate([everything[EffectTerm(*term).effects] for term in terms])
        effects.sort()
        order = np.concatenate([effects, np.setdiff1d(everything, effects)])
        values, directions = np.linalg.eigh(self.precision)
        root = directions / np.sqrt(np.maximum(np.abs(values), _LEAST_CURVATURE))
        sds = 1 / np.sqrt(np.maximum(self.curvatures, _LEAST_CURVATURE))
        floats = self.coupling, root, self.modes, sds, self.scale
        arrow = ArrowMap(
            jnp.asarray(order, jnp.int32),
            jnp.asarray(np.argsort(order), jnp.int32),
            *(jnp.asarray(of, posterior.dtype) for of in floats),
        )
        information, score, centre = (
            jnp.asarray(of, posterior.dtype) for of in (self.information, self.score, self.centre)
        )
        return EffectMap(arrow, information, score, centre, terms)
