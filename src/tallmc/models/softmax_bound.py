"""Third derivatives of the softmax likelihood.

With z₀ = v₀ = 0, f is the cumulant generating function of a variable that is v_k with probability
p_k, up to a linear term. D³f[v, v, v] is its third central moment, so with R = max |v_k − v_l|

    |D³f[v, v, v]| ≤ (√3/18) R³                      for all p, and
    |D³f[v, v, v]| ≤ R Var(v) ≤ R Σ_k p_k (v_k − v_r)²   for any class r.

The largest |v_k − v_l| for ‖u‖ ≤ 1 is ‖w_k − w_l‖, from the rows w_k of J. r is the most likely
class; rows that are well classified have small p_k for all others.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .cubic_bound import AbstractCubicBound

_LARGEST_SKEW = math.sqrt(3) / 18


class SoftmaxCubicBound(AbstractCubicBound):
    """The bound by the range of v, or by its variance."""

    @property
    def is_global(self) -> bool:
        return True

    def largest_cubic(
        self,
        z: Float[Array, " k"],
        reach: Float[Array, " k"],
        gram: Float[Array, "k k"],
        y: Float[Array, ""],
    ) -> Float[Array, ""]:
        scores, reaches = jnp.pad(z, (1, 0)), jnp.pad(reach, (1, 0))
        products = jnp.pad(gram, ((1, 0), (1, 0)))
        lengths = jnp.diagonal(products)
        squares = jnp.maximum(lengths[:, None] + lengths[None, :] - 2 * products, 0)
        widest = jnp.sqrt(jnp.max(squares))
        is_own = jnp.eye(len(scores), dtype=bool)
        others = jax.nn.logsumexp(
            jnp.where(is_own, -jnp.inf, scores[None, :] - reaches[None, :]), axis=1
        )
        chances = jax.nn.sigmoid(jnp.where(jnp.isinf(reaches), jnp.inf, scores + reaches - others))
        likely = jnp.argmax(scores)
        variance = jnp.sum(chances * squares[likely])
        return jnp.minimum(_LARGEST_SKEW * widest**3, widest * variance)

    def distance(self, z: Float[Array, " k"], move: Float[Array, " k"]) -> Float[Array, ""]:
        return jnp.max(jnp.abs(move))
