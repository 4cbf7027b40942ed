"""Remainders of order 2 of any model, by automatic differentiation; they have no bounds.

    R_i = h(1) − h(0) − h'(0) − h''(0)/2,   h(s) = f_i(θ̂ + s(θ − θ̂))

R_i is the integral of `quadrature.py` where this agrees with the difference, up to the rounding of
the difference. Elsewhere the row is too far from a polynomial for the rule, and R_i is the
difference.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...models.base import AbstractModel
from ...rows.base import AbstractRows, RowBlock
from .quadrature import integral
from .remainders import AbstractRemainders

_ROUNDING = 32.0
"""The rounding of a difference, in units of the precision of its terms."""


class ExpansionRemainders(AbstractRemainders):
    """Remainders without bounds."""

    model: AbstractModel
    order: int = eqx.field(static=True)
    anchor: Float[Array, " d"]

    def values(self, moves: Float[Array, "m d"], rows: RowBlock) -> Float[Array, "m n"]:
        def of_move(move: Float[Array, " d"]) -> Float[Array, " n"]:
            def potential(s: Float[Array, ""]) -> Float[Array, " n"]:
                return self.model.row_potentials(self.anchor + s * move, rows)

            first = _derivative(potential)
            second = _derivative(first)
            third = _derivative(second)
            zero, one = jnp.zeros((), move.dtype), jnp.ones((), move.dtype)
            terms = jnp.stack([potential(one), -potential(zero), -first(zero), -second(zero) / 2])
            difference = jnp.sum(terms, axis=0)
            rounding = _ROUNDING * jnp.finfo(move.dtype).eps * jnp.sum(jnp.abs(terms), axis=0)
            found = integral(2, lambda s: third(s * one))
            return jnp.where(jnp.abs(found - difference) <= rounding, found, difference)

        return jax.vmap(of_move)(moves)

    def constants(self, rows: RowBlock) -> Float[Array, " n"]:
        count = jax.tree.leaves(rows)[0].shape[0]
        return jnp.full(count, jnp.inf, self.anchor.dtype)

    def growth(self, here: Float[Array, " d"], there: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.full((), jnp.inf, self.anchor.dtype)

    def width(self, source: AbstractRows) -> int:
        return self.model.width(source)


_Path = Callable[[Float[Array, ""]], Float[Array, " n"]]


def _derivative(function: _Path) -> _Path:
    return lambda s: jax.jvp(function, (s,), (jnp.ones_like(s),))[1]
