"""Softmax regression with K + 1 classes. The first class is the baseline.

P(y = k | x) = e^{z_k} / Σ_j e^{z_j},   z₀ = 0,   z_k = B_k·x for k = 1, …, K
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..._core.arrays import Matrix, Scalar
from ..._rows.access import PerRow
from ..._rows.sharded import ShardedRows
from ..likelihood import AbstractLikelihood, Predictors
from ..posterior import ModelPosterior
from ..regression import Family

# Third derivatives of the softmax likelihood.
#
# With z₀ = v₀ = 0, f is the cumulant generating function of a variable that is v_k with probability
# p_k, up to a linear term. D³f[v, v, v] is its third central moment, so with R = max |v_k − v_l|
#
#     |D³f[v, v, v]| ≤ (√3/18) R³                      for all p, and
#     |D³f[v, v, v]| ≤ R Var(v) ≤ R Σ_k p_k (v_k − v_r)²   for any class r.
#
# The largest |v_k − v_l| for ‖u‖ ≤ 1 is ‖w_k − w_l‖, from the rows w_k of J. r is the most likely
# class; rows that are well classified have small p_k for all others.

_LARGEST_SKEW = math.sqrt(3) / 18


class Softmax(AbstractLikelihood):
    """Classes 0 to K; z = (z₁, …, z_K)."""

    n_classes: int = eqx.field(static=True)

    response = "classes"
    log_concave = True

    @property
    def n_predictors(self) -> int:
        return self.n_classes - 1

    def potential(self, z: Float[Array, " k"], y: Scalar) -> Scalar:
        scores = jnp.concatenate([jnp.zeros(1, z.dtype), z])
        own = jnp.sum(jnp.where(jnp.arange(len(scores)) == y, scores, 0))
        return jax.nn.logsumexp(scores) - own

    def largest_curvature(self) -> float:
        return 0.25 if self.n_predictors == 1 else 0.5

    def bounded(self, order: int) -> bool | None:
        return True if order == 3 else None

    def largest_cubic(self, z: Predictors, reach: Predictors, gram: Matrix, y: Scalar) -> Scalar:
        scores, reaches = jnp.pad(z, (1, 0)), jnp.pad(reach, (1, 0))
        products = jnp.pad(gram, ((1, 0), (1, 0)))
        lengths = jnp.diagonal(products)
        squares = jnp.maximum(lengths[:, None] + lengths[None, :] - 2 * products, 0)
        widest = jnp.sqrt(jnp.max(squares))
        is_own = jnp.eye(len(scores), dtype=bool)
        lowest = jnp.where(is_own, -jnp.inf, scores[None, :] - reaches[None, :])
        others = jax.nn.logsumexp(lowest, axis=1)
        chances = jax.nn.sigmoid(jnp.where(jnp.isinf(reaches), jnp.inf, scores + reaches - others))
        variance = jnp.sum(chances * squares[jnp.argmax(scores)])
        return jnp.minimum(_LARGEST_SKEW * widest**3, widest * variance)

    def mean(self, z: Float[Array, "n k"]) -> Float[Array, "n classes"]:
        return jax.nn.softmax(_scores(z), axis=1)

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n k"], trials: Any = None) -> PerRow:
        return jax.random.categorical(key, _scores(z), axis=1).astype(z.dtype)


def _scores(z: Float[Array, "n k"]) -> Float[Array, "n classes"]:
    return jnp.concatenate([jnp.zeros_like(z[:, :1]), z], axis=1)


FAMILY = Family(
    "categorical",
    links=("softmax",),
    likelihood=lambda link, classes, noise: Softmax(classes),
    other_names=("softmax", "multinomial"),
)


def softmax_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    classes: int | None = None,
    *,
    response: str | None = None,
    weights: ArrayLike | str | None = None,
) -> ModelPosterior:
    """Bayesian softmax regression, y_i ∈ {0, 1, …, classes − 1}, B_jk ~ N(0, prior_variance).

    **Arguments:** those of `logistic_regression`, without `offset`, and

    - `y`: the class of each row. Class 0 is the baseline, whose coefficients are zero.
    - `classes`: the number of classes; by default one more than the largest y.

    **Returns:** a posterior with the parameter `beta`, of shape (columns, classes − 1).
    """
    return FAMILY.regression(X, y, prior_variance, response, weights, classes=classes)
