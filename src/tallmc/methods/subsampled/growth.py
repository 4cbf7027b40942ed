"""How much a Taylor remainder can change between two positions.

R(u) is the remainder of order k of a function of t = wᵀu, so |∂R/∂t| ≤ F|t|ᵏ/k! with
F = sup |f⁽ᵏ⁺¹⁾|. With δ = u' − u,

    |R(u') − R(u)| ≤ F‖w‖ᵏ⁺¹ M(u, u'),   M = min(ends, path),
    ends = (‖u‖ᵏ⁺¹ + ‖u'‖ᵏ⁺¹)/(k + 1)!,   path = ‖δ‖ ∫₀¹ ‖u + sδ‖ᵏ ds / k!

`path` is the smaller one for short moves, `ends` for moves between independent positions. The
integral of the norm is at most the root of the integral of its square (k = 1), and that of its cube
at most √(∫‖·‖² ∫‖·‖⁴) (k = 3). M is symmetric in u and u'.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float


def growth(order: int, here: Float[Array, " d"], there: Float[Array, " d"]) -> Float[Array, ""]:
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
