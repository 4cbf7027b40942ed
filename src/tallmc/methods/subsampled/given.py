"""Remainders of any model, with a bound that the user gives.

The user bounds R_i by c_iᵀφ(θ), with k numbers c_i per row and a function φ ≥ 0 that all rows share
(`firefly/expansion.py`). With a typical growth φ̄, the mean of φ over the anchor's Gaussian,

    |D_i| ≤ c_iᵀ(φ(θ) + φ(θ')) ≤ (c_iᵀφ̄) M(u, u'),   M = max_k (φ_k(θ) + φ_k(θ'))/φ̄_k.

One table then draws the rows for all k parts of the bound. M does not become smaller for short
moves: proposals that are independent of the position use such a bound best.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ...anchor.anchor import Anchor
from ...core.arrays import on_device
from ...core.compiler import quickly_compiled
from ...core.errors import InvalidInput
from ...core.linear_maps import AbstractLinearMap, dot
from ...models.base import AbstractModel
from ...models.posterior import AbstractPosterior
from ...rows.base import AbstractRows, RowBlock
from ..firefly.expansion import BoundedExpansion, check_near_anchor
from ..firefly.taylor import Taylor
from .remainders import AbstractRemainders

_TYPICAL_POSITIONS = 512


class GivenRemainders(AbstractRemainders):
    """Remainders of order 2 with a bound of the user's."""

    model: AbstractModel
    order: int = eqx.field(static=True)
    expansion: BoundedExpansion
    metric: AbstractLinearMap
    typical: Float[Array, " k"]
    """φ̄."""

    def values(self, moves: Float[Array, "m d"], rows: RowBlock) -> Float[Array, "m n"]:
        def of_move(move: Float[Array, " d"]) -> Float[Array, " n"]:
            found = self.expansion.remainders(self.expansion.anchor + move, rows)
            # A value above its bound by no more than its rounding error counts as at the bound.
            size = jnp.maximum(found.bounds, jnp.abs(found.values) - found.rounding)
            values = jnp.clip(found.values, -size, size)
            # Thinning would not notice a NaN. An infinite change exceeds its cap and is counted.
            return jnp.where(jnp.isnan(values), jnp.inf, values)

        return jax.vmap(of_move)(moves)

    def constants(self, rows: RowBlock) -> Float[Array, " n"]:
        return dot(self.expansion.constants_of(rows), self.typical)

    def growth(self, here: Float[Array, " d"], there: Float[Array, " d"]) -> Float[Array, ""]:
        grown = jnp.sum(_growths(self.expansion, self.metric, jnp.stack([here, there])), axis=0)
        return jnp.max(jnp.where(grown == 0, 0, grown / self.typical), initial=0)

    def width(self, source: AbstractRows) -> int:
        return self.model.width(source)


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


def _has_bad_constants(rows: RowBlock, expansion: BoundedExpansion) -> Bool[Array, " n"]:
    constants = expansion.constants_of(rows)
    return ~jnp.all(jnp.isfinite(constants) & (constants >= 0), axis=1)
