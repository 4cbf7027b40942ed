"""Taylor remainders without cancellation.

    R = h(1) − Σ_{j≤k} h⁽ʲ⁾(0)/j! = 1/k! ∫₀¹ (1 − s)ᵏ h⁽ᵏ⁺¹⁾(s) ds

h(s) is a row's potential on the way from the anchor to a position. In single precision, the
difference on the left loses all digits: near the anchor R is of the order of 10⁻⁷ and h of 1. The
integral keeps them. Gauss and Jacobi's rule with the weight (1 − s)ᵏ computes it to single
precision as long as the predictor moves by less than 1. Beyond that, R is large enough for the
difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

_NODES = 5
_FAR = 1.0
"""Moves of the predictor beyond which the difference is accurate enough."""


def remainder(
    order: int,
    derivative: Callable[[float], Float[Array, "*k n"]],
    difference: Float[Array, "*k n"],
    distance: Float[Array, "*k n"],
) -> Float[Array, "*k n"]:
    """R of this order, k.

    **Arguments:**

    - `order`: k.
    - `derivative`: h⁽ᵏ⁺¹⁾ as a function of s.
    - `difference`: R as a difference, which is used for far moves.
    - `distance`: how far the predictors move.
    """
    return jnp.where(distance < _FAR, integral(order, derivative), difference)


def integral(
    order: int, derivative: Callable[[float], Float[Array, "*k n"]]
) -> Float[Array, "*k n"]:
    """R by the rule."""
    (first, *nodes), (weight, *weights) = _rule(order)
    total = weight * derivative(first)
    for node, weight in zip(nodes, weights, strict=True):
        total += weight * derivative(node)
    return total


def _rule(order: int) -> tuple[list[float], list[float]]:
    """Nodes and weights on [0, 1] for the weight (1 − s)ᵏ/k!."""
    from scipy.special import roots_jacobi  # a slow import

    nodes, weights = roots_jacobi(_NODES, order, 0)
    scale = 2.0 ** (order + 1) * math.factorial(order)
    # Python's numbers leave arrays in their precision.
    return ((nodes + 1) / 2).tolist(), (weights / scale).tolist()
