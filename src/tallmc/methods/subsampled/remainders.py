"""What the rows contribute to the accept step: the remainders of their Taylor expansions.

In coordinates u with θ = θ̂ + Cu, CCᵀ = Σ̂, row i has the potential f_i = T_i + R_i, with its Taylor
expansion T_i of order k at the anchor. The sum of all T_i is known without reading rows. Between
two positions,

    D_i = R_i(u') − R_i(u),   |D_i| ≤ c_i M(u, u').

c_i is computed for every row before the first step. M is symmetric and the same for all rows. The
smaller Σc_i · M, the fewer rows a step reads. Σc_i falls as N^((1−k)/2): a whitened row has a
length of the order of N^(−1/2).
"""

from __future__ import annotations

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._anchor.anchor import Anchor
from ..._core.arrays import AbstractLinearMap, Scalar, Vector, dot, on_device
from ..._core.errors import InvalidInput
from ..._core.programs import quickly_compiled
from ..._rows.access import AbstractRows, PerRow, RowBlock, RowValues
from ...models.model import AbstractModel
from ...models.posterior import AbstractPosterior
from ..firefly import BoundedExpansion, Taylor, check_near_anchor


class AbstractRemainders(eqx.Module):
    """Remainders R_i, and a bound on their changes."""

    model: eqx.AbstractVar[AbstractModel]
    order: eqx.AbstractVar[int]  # k, the order of the expansion

    @abc.abstractmethod
    def values(self, moves: Float[Array, "m d"], block: RowBlock) -> Float[Array, "m n"]:
        """R_i at θ̂ + move, for some moves."""

    @abc.abstractmethod
    def constants(self, block: RowBlock) -> PerRow:
        """c_i."""

    @abc.abstractmethod
    def growth(self, here: Vector, there: Vector) -> Scalar:
        """M(u, u'); infinite where there is no bound."""

    def width(self, rows: AbstractRows) -> int:
        """Floats that a pass over the rows for c_i needs per row."""
        return self.model.width(rows)

    def constants_of_all(self, rows: AbstractRows) -> RowValues:
        """c_i of every row, in one pass."""
        return rows.map(_constants, self, width=self.width(rows))


def _constants(block: RowBlock, remainders: AbstractRemainders) -> PerRow:
    return remainders.constants(block)


# How much a Taylor remainder can change between two positions.
#
# R(u) is the remainder of order k of a function of t = wᵀu, so |∂R/∂t| ≤ F|t|ᵏ/k! with
# F = sup |f⁽ᵏ⁺¹⁾|. With δ = u' − u,
#
#     |R(u') − R(u)| ≤ F‖w‖ᵏ⁺¹ M(u, u'),   M = min(ends, path),
#     ends = (‖u‖ᵏ⁺¹ + ‖u'‖ᵏ⁺¹)/(k + 1)!,   path = ‖δ‖ ∫₀¹ ‖u + sδ‖ᵏ ds / k!
#
# `path` is the smaller one for short moves, `ends` for moves between independent positions. The
# integral of the norm is at most the root of the integral of its square (k = 1), and that of its
# cube at most √(∫‖·‖² ∫‖·‖⁴) (k = 3). M is symmetric in u and u'.


def growth(order: int, here: Vector, there: Vector) -> Scalar:
    """M(u, u') for remainders of this order, 0 to 3."""
    move = there - here
    square, cross, length = jnp.sum(here**2), jnp.sum(here * move), jnp.sum(move**2)
    ends = jnp.sqrt(square) ** (order + 1) + jnp.linalg.norm(there) ** (order + 1)
    mean_square = square + cross + length / 3
    if order == 0:
        mean = jnp.ones_like(square)
    elif order == 1:
        mean = jnp.sqrt(mean_square)
    elif order == 2:
        mean = mean_square
    else:
        mean_fourth = (
            square**2
            + 2 * square * cross
            + (4 * cross**2 + 2 * square * length) / 3
            + cross * length
            + length**2 / 5
        )
        mean = jnp.sqrt(mean_square * mean_fourth)
    path = jnp.sqrt(length) * mean / math.factorial(order)
    return jnp.minimum(ends / math.factorial(order + 1), path)


# Bounds within a radius of the anchor, and beyond.
#
# Within the radius r the predictors of a row stay in a box, so the supremum over this box is
# enough. It is often a fraction of the supremum over all predictors, and it is finite for
# likelihoods whose derivatives have no bound. Beyond the radius M is larger by a factor κ, and c_i
# is at least 1/κ of its value for all predictors. If there is no such value, there is no M: such
# moves are rejected, so the chain draws from the posterior within the radius.

_FACTOR_BEYOND = 16.0  # κ
_OFTEN_BEYOND, _NEVER_BEYOND = 1e-3, 1e-10
"""Chances that a Gaussian position is beyond the radius, with and without a bound there."""


def radius_of(dim: int, bounded: bool) -> float:
    """r: positions hardly ever leave it; with a bound beyond, they may sometimes."""
    from scipy.special import chdtri  # a slow import

    return math.sqrt(chdtri(dim, _OFTEN_BEYOND if bounded else _NEVER_BEYOND))


class ModelRemainders(AbstractRemainders):
    """Remainders with the bounds that the model knows."""

    model: AbstractModel
    order: int = eqx.field(static=True)
    anchor: Vector
    metric: AbstractLinearMap
    radius: Scalar  # r
    bounded: bool = eqx.field(static=True)  # Whether there is a bound beyond the radius

    @classmethod
    def at(
        cls, model: AbstractModel, order: int, anchor: Anchor, metric: AbstractLinearMap
    ) -> ModelRemainders:
        """Remainders at the anchor, with a radius that positions hardly ever leave."""
        bounded = model.remainder_bound(order)
        assert bounded is not None, "checked before"
        radius = on_device(radius_of(model.dim, bounded), model.dtype)
        return cls(model, order, anchor.position, metric, radius, bounded)

    def values(self, moves: Float[Array, "m d"], block: RowBlock) -> Float[Array, "m n"]:
        return self.model.remainder_values(self.order, self.anchor, moves, block)

    def constants(self, block: RowBlock) -> PerRow:
        def sizes(radius: Scalar | None) -> PerRow:
            return self.model.remainder_sizes(self.order, self.anchor, self.metric, radius, block)

        within = sizes(self.radius)
        return jnp.maximum(within, sizes(None) / _FACTOR_BEYOND) if self.bounded else within

    def growth(self, here: Vector, there: Vector) -> Scalar:
        farthest = jnp.maximum(jnp.linalg.norm(here), jnp.linalg.norm(there))
        beyond = _FACTOR_BEYOND if self.bounded else jnp.inf
        return jnp.where(farthest <= self.radius, 1, beyond) * growth(self.order, here, there)

    def width(self, rows: AbstractRows) -> int:
        return self.model.remainder_width(rows)


# Remainders of any model, with a bound that the user gives.
#
# The user bounds R_i by c_iᵀφ(θ), with k numbers c_i per row and a function φ ≥ 0 that all rows
# share (`firefly.py`). With a typical growth φ̄, the mean of φ over the anchor's
# Gaussian,
#
#     |D_i| ≤ c_iᵀ(φ(θ) + φ(θ')) ≤ (c_iᵀφ̄) M(u, u'),   M = max_k (φ_k(θ) + φ_k(θ'))/φ̄_k.
#
# One table then draws the rows for all k parts of the bound. M does not become smaller for short
# moves: proposals that are independent of the position use such a bound best.

_TYPICAL_POSITIONS = 512


class GivenRemainders(AbstractRemainders):
    """Remainders of order 2 with a bound of the user's."""

    model: AbstractModel
    order: int = eqx.field(static=True)
    expansion: BoundedExpansion
    metric: AbstractLinearMap
    typical: Float[Array, " k"]  # φ̄

    def values(self, moves: Float[Array, "m d"], block: RowBlock) -> Float[Array, "m n"]:
        def of_move(move: Vector) -> PerRow:
            found = self.expansion.remainders(self.expansion.anchor + move, block)
            # A value above its bound by no more than its rounding error counts as at the bound.
            size = jnp.maximum(found.bounds, jnp.abs(found.values) - found.rounding)
            values = jnp.clip(found.values, -size, size)
            # Thinning would not notice a NaN. An infinite change exceeds its cap and is counted.
            return jnp.where(jnp.isnan(values), jnp.inf, values)

        return jax.vmap(of_move)(moves)

    def constants(self, block: RowBlock) -> PerRow:
        return dot(self.expansion.constants_of(block), self.typical)

    def growth(self, here: Vector, there: Vector) -> Scalar:
        grown = jnp.sum(_growths(self.expansion, self.metric, jnp.stack([here, there])), axis=0)
        return jnp.max(jnp.where(grown == 0, 0, grown / self.typical), initial=0)


def given_remainders(
    bound: Taylor, posterior: AbstractPosterior, anchor: Anchor, metric: AbstractLinearMap
) -> tuple[GivenRemainders, int]:
    """The remainders at the anchor, and how many rows were evaluated to check their bound.

    Raises `InvalidInput` if the bound does not hold near the anchor.
    """
    assert anchor.hessian is not None, "the method needs a Hessian"
    model, dtype = posterior.model, posterior.dtype
    expansion = BoundedExpansion(model, anchor.position, bound.constants, bound.growth)
    row = posterior.rows.first_where(_has_bad_constants, expansion, width=posterior.width)
    if row is not None:
        rule = "have `constants` that are finite and not negative"
        raise InvalidInput("bound", rule, f"others for row {row}")
    shape = (_TYPICAL_POSITIONS, posterior.dim)
    positions = on_device(np.random.default_rng(0).normal(size=shape), dtype)
    growths = np.asarray(_compiled_growths(expansion, metric, positions), np.float64)
    is_finite = np.isfinite(growths)
    if not (growths >= 0).all() or not is_finite.any(axis=0).all():
        rule = "have a `growth` that is not negative, and finite near the anchor"
        raise InvalidInput("bound", rule, f"{np.min(growths)} near the anchor")
    remainders = GivenRemainders(
        model=model,
        order=2,
        expansion=expansion,
        metric=metric,
        typical=on_device(np.mean(growths, axis=0, where=is_finite), dtype),
    )
    checked = check_near_anchor(expansion, posterior, anchor.hessian, both_sides=True)
    return remainders, posterior.n_rows + checked


def _growths(
    expansion: BoundedExpansion, metric: AbstractLinearMap, positions: Float[Array, "m d"]
) -> Float[Array, "m k"]:
    """φ at θ̂ + Cu for some u."""
    return jax.vmap(expansion.growth_at)(expansion.anchor + metric.push(positions))


_compiled_growths = quickly_compiled(_growths)


def _has_bad_constants(block: RowBlock, expansion: BoundedExpansion) -> Bool[Array, " n"]:
    constants = expansion.constants_of(block)
    return ~jnp.all(jnp.isfinite(constants) & (constants >= 0), axis=1)


_MOST_CUBIC = 200  # Parameters of expansions of order 3, which have d³ coefficients


def prepare_remainders(
    posterior: AbstractPosterior,
    anchor: Anchor,
    metric: AbstractLinearMap,
    order: int,
    bound: Taylor | None = None,
) -> tuple[AbstractRemainders, int]:
    """The remainders of this order at the anchor, and how many rows were evaluated for them."""
    if bound is not None:
        assert order == 2, "checked before"
        return given_remainders(bound, posterior, anchor, metric)
    model = posterior.model
    if model.remainder_bound(2) is None:
        rule = "have a bound on the third derivatives of its rows"
        cure = "Pass bound=Taylor(...) with a bound of your own, or use mala(...)."
        raise InvalidInput("posterior", rule, type(model).__name__, cure)
    too_many = order == 3 and posterior.dim > _MOST_CUBIC
    if too_many or model.remainder_bound(order) is None:
        rule = f"be 2 for models with several predictors, or more than {_MOST_CUBIC} parameters"
        raise InvalidInput("order", rule, order)
    return ModelRemainders.at(model, order, anchor, metric), 0
