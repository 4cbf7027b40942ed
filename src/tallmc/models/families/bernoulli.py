"""Binary responses: logistic and probit regression.

logit    P(y = 1) = 1/(1 + e^−z),   f = log(1 + e^−sz),   s = 2y − 1
probit   P(y = 1) = Φ(z),           f = −log Φ(sz)
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr
from jaxtyping import ArrayLike, PRNGKeyArray

from ..._rows.access import PerRow
from ..._rows.sharded import ShardedRows
from ..likelihood import AbstractLikelihood, softplus
from ..posterior import ModelPosterior
from ..regression import Family

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_FAR = 5.0
_FRACTION_TERMS = 25  # accurate to 1e-16 beyond _FAR

# With p = 1/(1 + e^−z), the third derivative p(1−p)(1−2p) turns where p(1−p) = 1/6, and the fourth,
# p(1−p)(1 − 6p(1−p)), where p = 1/2 or p(1−p) = 1/12.
_LOGISTIC_THIRD = math.log((3 + math.sqrt(3)) / (3 - math.sqrt(3)))
_LOGISTIC_FOURTH = math.log((3 + math.sqrt(6)) / (3 - math.sqrt(6)))
_LOGISTIC_TURNS: dict[int, tuple[float, ...]] = {
    1: (),
    2: (0.0,),
    3: (-_LOGISTIC_THIRD, _LOGISTIC_THIRD),
    4: (-_LOGISTIC_FOURTH, 0.0, _LOGISTIC_FOURTH),
}
# Zeros of the fourth and fifth derivatives of −log Φ.
_PROBIT_TURNS: dict[int, tuple[float, ...]] = {
    1: (),
    2: (),
    3: (1.00236934,),
    4: (-0.02983362, 2.07128894),
}


class AbstractLogistic(AbstractLikelihood):
    """E y = 1/(1 + e^−z): what Bernoulli and binomial responses share."""

    elementwise = True
    log_concave = True

    def curvature(self, z: PerRow, y: PerRow) -> PerRow:
        return jax.nn.sigmoid(z) * jax.nn.sigmoid(-z)

    def largest_curvature(self) -> float:
        return 0.25

    def turning_points(self, order: int, y: PerRow) -> tuple[PerRow, ...]:
        return tuple(jnp.full_like(y, point) for point in _LOGISTIC_TURNS[order])

    def bounded(self, order: int) -> bool:
        return True

    def mean(self, z: PerRow) -> PerRow:
        return jax.nn.sigmoid(z)


class Bernoulli(AbstractLogistic):
    """y ∈ {0, 1}, P(y = 1) = 1/(1 + e^−z)."""

    response = "binary"
    is_logistic = True
    fused = True

    def potential(self, z: PerRow, y: PerRow) -> PerRow:
        return softplus((1 - 2 * y) * z)

    def slope(self, z: PerRow, y: PerRow) -> PerRow:
        # Equals σ(z) − y, without the cancellation for a well classified row.
        sign = 1 - 2 * y
        return sign * jax.nn.sigmoid(sign * z)

    def simulate(self, key: PRNGKeyArray, z: PerRow, trials: Any = None) -> PerRow:
        return jax.random.bernoulli(key, self.mean(z)).astype(z.dtype)


class BernoulliProbit(AbstractLikelihood):
    """y ∈ {0, 1}, P(y = 1) = Φ(z)."""

    elementwise = True
    log_concave = True
    response = "binary"

    def potential(self, z: PerRow, y: PerRow) -> PerRow:
        return -log_ndtr((2 * y - 1) * z)

    def slope(self, z: PerRow, y: PerRow) -> PerRow:
        sign = 2 * y - 1
        return -sign * _inverse_mills(sign * z)[0]

    def curvature(self, z: PerRow, y: PerRow) -> PerRow:
        ratio, excess = _inverse_mills((2 * y - 1) * z)
        return ratio * excess

    def largest_curvature(self) -> float:
        return 1.0

    def turning_points(self, order: int, y: PerRow) -> tuple[PerRow, ...]:
        return tuple((2 * y - 1) * point for point in _PROBIT_TURNS[order])

    def bounded(self, order: int) -> bool:
        return order >= 2

    def mean(self, z: PerRow) -> PerRow:
        return jax.scipy.stats.norm.cdf(z)

    def simulate(self, key: PRNGKeyArray, z: PerRow, trials: Any = None) -> PerRow:
        return (jax.random.normal(key, z.shape, z.dtype) < z).astype(z.dtype)


def _inverse_mills(z: PerRow) -> tuple[PerRow, PerRow]:
    """r = φ(z)/Φ(z), and r + z, which is about −1/z for very negative z."""
    # r + z = 1/(x + 2/(x + 3/(x + …))) with x = −z; the quotient of densities loses all digits.
    is_far = z < -_FAR
    x = jnp.where(is_far, -z, _FAR)
    fraction = x
    for k in range(_FRACTION_TERMS, 1, -1):
        fraction = x + k / fraction
    near = jnp.where(is_far, 0.0, z)
    ratio = jnp.exp(-0.5 * near**2 - _LOG_SQRT_2PI - log_ndtr(near))
    return jnp.where(is_far, x + 1 / fraction, ratio), jnp.where(is_far, 1 / fraction, ratio + z)


FAMILY = Family(
    "bernoulli",
    links=("logit", "probit"),
    likelihood=lambda link, classes, noise: Bernoulli() if link == "logit" else BernoulliProbit(),
    other_names=("logistic", "logit", "binary", "probit"),
)


def logistic_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    *,
    response: str | None = None,
    weights: ArrayLike | str | None = None,
    offset: ArrayLike | str | None = None,
) -> ModelPosterior:
    """Bayesian logistic regression, y_i ∈ {0, 1}, θ_j ~ N(0, prior_variance).

    **Arguments:**

    - `X`: the design matrix, with its own intercept column, as an array or a data frame; or the
      rows of a row store, from `tallmc.rows.open`.
    - `y`: 0 or 1 per row.
    - `prior_variance`: a number, or one per column of X.
    - `response`: the name of the response, if X is a row store; then there is no `y`.
    - `weights`: how many times each row counts; for a row store the name of a column.
    - `offset`: a number per row that is added to its predictor; for a row store a column's name.

    **Returns:** a posterior with the parameter `beta`.
    """
    return FAMILY.regression(X, y, prior_variance, response, weights, offset)


def probit_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    *,
    response: str | None = None,
    weights: ArrayLike | str | None = None,
    offset: ArrayLike | str | None = None,
) -> ModelPosterior:
    """Bayesian probit regression, y_i ∈ {0, 1}, P(y_i = 1) = Φ(x_iᵀθ), θ_j ~ N(0, prior_variance).

    Arguments and result are those of `logistic_regression`.
    """
    return FAMILY.regression(X, y, prior_variance, response, weights, offset, link="probit")
