"""Cumulative logit regression for ordered classes.

    P(y ≤ k) = 1/(1 + e^{−(c_k − z)}),   k = 0, …, K − 2,   c₀ < c₁ < …
    c₀ = s₀,   c_k = c_{k−1} + e^{s_k}

The cut points are the shared parameters, in the unconstrained form s. There is no intercept: the
cut points take its place.
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..._core.arrays import Scalar
from ..._rows.access import PerRow
from ..._rows.sharded import ShardedRows
from ..design import RegressionData
from ..likelihood import AbstractLikelihood, softplus
from ..posterior import ModelPosterior
from ..priors import AbstractPrior
from ..regression import Family, Shared

_TINY_GAP = -20.0  # below it, log(1 − e^{−g}) = s − g/2 to 1e-19


class CumulativeLogit(AbstractLikelihood):
    """Ordered classes 0 to K − 1; z = (predictor, s₀, …, s_{K−2})."""

    n_classes: int = eqx.field(static=True)

    response = "ordered"

    @property
    def n_shared(self) -> int:
        return self.n_classes - 1

    def potential(self, z: Float[Array, " k"], y: Scalar) -> Scalar:
        # σ(b) − σ(a) = σ(b) σ(−a) (1 − e^{−(b−a)}) with a, b the margins below and above y.
        margins = cut_points(z[1:]) - z[0]
        edge = jnp.zeros(1, z.dtype)
        below = jnp.concatenate([edge, softplus(margins)])
        above = jnp.concatenate([softplus(-margins), edge])
        gaps = jnp.concatenate([edge, _log_gap(z[2:]), edge])
        is_y = jnp.arange(self.n_classes) == y
        return jnp.sum(jnp.where(is_y, below + above - gaps, 0.0))

    def mean(self, z: Float[Array, "n k"]) -> Float[Array, "n classes"]:
        upper = jax.nn.sigmoid(jax.vmap(cut_points)(z[:, 1:]) - z[:, :1])
        return jnp.diff(jnp.pad(upper, ((0, 0), (1, 1)), constant_values=(0.0, 1.0)), axis=1)

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n k"], trials: Any = None) -> PerRow:
        latent = z[:, 0] + jax.random.logistic(key, z.shape[:1], z.dtype)
        cuts = jax.vmap(cut_points)(z[:, 1:])
        return jnp.sum(latent[:, None] > cuts, axis=1).astype(z.dtype)


def _log_gap(s: Float[Array, " k"]) -> Float[Array, " k"]:
    """log(1 − e^{−g}) with g = eˢ, also where g underflows."""
    gap, is_tiny = jnp.exp(s), s < _TINY_GAP
    return jnp.where(is_tiny, s - 0.5 * gap, jnp.log(-jnp.expm1(-jnp.where(is_tiny, 1.0, gap))))


class CutPointPrior(AbstractPrior):
    """The prior of s for which the class probabilities at z = 0 are uniform on the simplex.

    The map from cut points to probabilities has the Jacobian Π σ'(c_k), and that from s to cut
    points has Π_{k≥1} e^{s_k}.
    """

    log_concave = False

    def potential(self, values: Float[Array, " k"]) -> Scalar:
        cuts = cut_points(values)
        slopes = softplus(cuts) + softplus(-cuts)
        return jnp.sum(slopes) - jnp.sum(values[1:])

    def log_integral(self, count: int) -> float:
        return -math.lgamma(count + 1)  # the volume of the simplex

    def sample(self, random: np.random.Generator, n_draws: int, count: int) -> np.ndarray:
        chances = random.dirichlet(np.ones(count + 1), n_draws)
        below, above = np.cumsum(chances, axis=1), np.cumsum(chances[:, ::-1], axis=1)[:, ::-1]
        cuts = np.log(below[:, :-1] / above[:, 1:])
        return np.concatenate([cuts[:, :1], np.log(np.diff(cuts, axis=1))], axis=1)


def cut_points(free: Float[Array, " k"]) -> Float[Array, " k"]:
    """c from s."""
    return jnp.cumsum(jnp.concatenate([free[:1], jnp.exp(free[1:])]))


def _shared(data: RegressionData, classes: int) -> list[Shared]:
    """Cut points for which all classes are equally likely at z = 0, and their prior."""
    share = np.arange(1, classes) / classes
    cuts = np.log(share / (1 - share))
    free = np.concatenate([cuts[:1], np.log(np.diff(cuts))])
    return [Shared("cut_points", free, CutPointPrior())]


FAMILY = Family(
    "ordinal",
    links=("logit",),
    likelihood=lambda link, classes, noise: CumulativeLogit(classes),
    shared=_shared,
    shared_prior={"threshold": "uniform class probabilities at the mean of the columns"},
    has_intercept=False,
    other_names=("cumulative", "ordered"),
)


def ordinal_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    classes: int | None = None,
    *,
    response: str | None = None,
    weights: ArrayLike | str | None = None,
    offset: ArrayLike | str | None = None,
) -> ModelPosterior:
    """Bayesian cumulative logit regression, y_i ∈ {0, 1, …, classes − 1}, in this order.

    **Arguments:** those of `logistic_regression`, but X has no intercept, and

    - `y`: the class of each row.
    - `classes`: the number of classes; by default one more than the largest y.

    **Returns:** a posterior with the parameters `beta` and `cut_points`, in the unconstrained form
    s: the first cut point, then the logs of the distances between cut points.
    """
    return FAMILY.regression(X, y, prior_variance, response, weights, offset, classes=classes)
