"""Taylor expansions of the rows at the anchor, with a bound of the user's on their remainders.

    R_i(θ) = f_i(θ) − f_i(θ̂) − ∇f_i(θ̂)ᵀδ − ½ δᵀ∇²f_i(θ̂)δ,   δ = θ − θ̂,   |R_i| ≤ c_iᵀφ(θ̂, θ)

c_i are constants of the row, and φ is a function that all rows share. R_i is of third order and the
difference of numbers of order 1: it needs double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from ...core.errors import InvalidInput
from ...core.linear_maps import dot
from ...models.base import AbstractModel
from ...models.posterior import AbstractPosterior
from ...rows.base import RowBlock

_ROUNDING = 64
"""Rounding errors of a remainder, in units of the machine precision times its largest term."""
_CHECKED_DISTANCE = 4.0
"""The bound is checked at so many posterior standard deviations from the anchor."""

RowConstants = Callable[[PyTree, PyTree], ArrayLike]
"""c_i from the parameters at the anchor and one row, a vector of k numbers."""
Growth = Callable[[PyTree, PyTree], ArrayLike]
"""φ from the parameters at the anchor and the parameters, a vector of k numbers."""


class RowRemainders(NamedTuple):
    """Remainders of some rows at a position."""

    values: Float[Array, " n"]
    """R_i."""
    bounds: Float[Array, " n"]
    """c_iᵀφ."""
    rounding: Float[Array, " n"]
    """How large the rounding errors of both can be."""


class BoundedExpansion(eqx.Module):
    """Expansions of order 2 at the anchor, and the bound on their remainders."""

    model: AbstractModel
    anchor: Float[Array, " d"]
    constants: RowConstants
    growth: Growth

    def remainders(self, position: Float[Array, " d"], rows: RowBlock) -> RowRemainders:
        """R_i and c_iᵀφ."""
        delta = position - self.anchor

        def potentials(at: Float[Array, " d"]) -> Float[Array, " n"]:
            return self.model.row_potentials(at, rows)

        def along_delta(at: Float[Array, " d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
            return jax.jvp(potentials, (at,), (delta,))

        (value, slope), (_, curvature) = jax.jvp(along_delta, (self.anchor,), (delta,))
        parts = jnp.stack([potentials(position), -value, -slope, -curvature / 2])
        bounds = dot(self.constants_of(rows), self.growth_at(position))
        largest = jnp.maximum(jnp.max(jnp.abs(parts), axis=0), jnp.abs(bounds))
        precision = _ROUNDING * jnp.finfo(position.dtype).eps
        return RowRemainders(jnp.sum(parts, axis=0), bounds, precision * largest)

    def constants_of(self, rows: RowBlock) -> Float[Array, "n k"]:
        """c_i."""
        centre = self.model.layout.unravel(self.anchor)
        constants = jax.vmap(lambda row: jnp.asarray(self.constants(centre, row)))(rows)
        return constants.astype(self.anchor.dtype)

    def growth_at(self, position: Float[Array, " d"]) -> Float[Array, " k"]:
        """φ(θ̂, θ)."""
        unravel = self.model.layout.unravel
        growth = jnp.asarray(self.growth(unravel(self.anchor), unravel(position)))
        return growth.astype(position.dtype)


def check_near_anchor(
    expansion: BoundedExpansion,
    posterior: AbstractPosterior,
    hessian: Float[Array, "d d"],
    *,
    both_sides: bool,
) -> int:
    """Raise if R_i, or |R_i| for `both_sides`, exceeds its bound near the anchor.

    Checks all rows along the eigenvectors of the `hessian` of the posterior's potential.

    **Returns:** the number of rows evaluated.
    """
    curvatures, directions = np.linalg.eigh(np.asarray(hessian))
    sds = 1 / np.sqrt(np.maximum(curvatures, np.finfo(float).tiny))
    moves = _CHECKED_DISTANCE * (directions * np.minimum(sds, 1.0)).T
    exceeds = _exceeds_in_size if both_sides else _exceeds
    for move in np.concatenate([moves, -moves]):
        position = expansion.anchor + move
        row = posterior.rows.first_where(exceeds, expansion, position, width=posterior.width)
        if row is not None:
            task = "bound every remainder" if both_sides else "be below every likelihood"
            place = ", ".join(f"{number:.4g}" for number in np.asarray(position))
            raise InvalidInput(
                "bound",
                f"{task}: |log L_i − expansion| ≤ c_iᵀφ",
                f"more for row {row} at ({place})",
            )
    return 2 * len(moves) * posterior.n_rows


def _exceeds(
    rows: RowBlock, expansion: BoundedExpansion, position: Float[Array, " d"]
) -> Bool[Array, " n"]:
    found = expansion.remainders(position, rows)
    return found.values > found.bounds + found.rounding


def _exceeds_in_size(
    rows: RowBlock, expansion: BoundedExpansion, position: Float[Array, " d"]
) -> Bool[Array, " n"]:
    found = expansion.remainders(position, rows)
    return jnp.abs(found.values) > found.bounds + found.rounding
