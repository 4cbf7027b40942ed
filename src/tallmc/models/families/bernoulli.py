"""Binary responses, by logistic and probit regression, and counts of successes in t trials.

logit      P(y = 1) = 1/(1 + e^−z),   f = log(1 + e^−sz),   s = 2y − 1
probit     P(y = 1) = Φ(z),           f = −log Φ(sz)
binomial   t f = t [log(1 + e^z) − yz] with y the share of successes: t is the weight of the row
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, log_ndtr
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..._core.arrays import check_numeric
from ..._core.errors import InvalidInput
from ..._rows.access import PerRow
from ..._rows.sharded import ShardedRows
from ..design import normal_prior, regression_data
from ..likelihood import AbstractLikelihood, softplus, softplus_change
from ..posterior import ModelPosterior
from ..regression import Family, regression_posterior

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_FAR = 2.0
_FRACTION_TERMS = {4: 30, 8: 90}  # by bytes per number; accurate to 1e-7 and 1e-14 beyond _FAR

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
    exact_changes = True

    def change(self, z: PerRow, y: PerRow) -> Callable[[Float[Array, "n ..."]], Array]:
        return softplus_change(z, y)

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


class Binomial(AbstractLogistic):
    """Shares y of successes in t trials."""

    response = "count"
    has_trials = True

    def potential(self, z: PerRow, y: PerRow) -> PerRow:
        return y * softplus(-z) + (1 - y) * softplus(z)

    def slope(self, z: PerRow, y: PerRow) -> PerRow:
        return (1 - y) * jax.nn.sigmoid(z) - y * jax.nn.sigmoid(-z)

    def constant(self, y: PerRow, trials: Any = None) -> PerRow:
        trials = jnp.ones_like(y) if trials is None else trials
        successes = trials * y
        return gammaln(successes + 1) + gammaln(trials - successes + 1) - gammaln(trials + 1)

    def simulate(self, key: PRNGKeyArray, z: PerRow, trials: Any = None) -> PerRow:
        trials = jnp.ones_like(z) if trials is None else trials
        return jax.random.binomial(key, trials, self.mean(z), dtype=z.dtype) / trials


class BernoulliProbit(AbstractLikelihood):
    """y ∈ {0, 1}, P(y = 1) = Φ(z)."""

    elementwise = True
    log_concave = True
    response = "binary"

    def potential(self, z: PerRow, y: PerRow) -> PerRow:
        return -log_ndtr((2 * y - 1) * z)

    def slope(self, z: PerRow, y: PerRow) -> PerRow:
        sign = 2 * y - 1
        return -sign * _inverse_mills(sign * z).ratio

    def curvature(self, z: PerRow, y: PerRow) -> PerRow:
        found = _inverse_mills((2 * y - 1) * z)
        return found.ratio * found.excess

    def derivative(self, order: int, z: PerRow, y: PerRow) -> PerRow:
        if order != 3:
            return super().derivative(order, z, y)
        sign = 2 * y - 1
        found = _inverse_mills(sign * z)
        return sign * found.ratio * found.bend

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


class _Mills(NamedTuple):
    """r = φ(z)/Φ(z). The derivatives of −log Φ are −r, re and r(1 − re − e²)."""

    ratio: PerRow
    excess: PerRow
    """e = r + z, about −1/z for very negative z."""
    bend: PerRow
    """1 − re − e², about −2/z⁴ for very negative z."""


def _inverse_mills(z: PerRow) -> _Mills:
    # Far from zero the differences lose all digits. With x = −z, e = 1/(x + g), g = 2/(x + h) and
    # h = 3/(x + 4/(x + …)), so 1 − re − e² = e(g − 2e) = e²g(g − h).
    is_far = z < -_FAR
    x = jnp.where(is_far, -z, _FAR)
    h = jnp.zeros_like(x)
    for k in range(_FRACTION_TERMS[h.dtype.itemsize], 2, -1):
        h = k / (x + h)
    g = 2 / (x + h)
    excess = 1 / (x + g)
    near = jnp.where(is_far, 0.0, z)
    ratio = jnp.exp(-0.5 * near**2 - _LOG_SQRT_2PI - log_ndtr(near))
    e = ratio + near
    return _Mills(
        jnp.where(is_far, x + excess, ratio),
        jnp.where(is_far, excess, e),
        jnp.where(is_far, excess**2 * g * (g - h), 1 - e * (ratio + e)),
    )


BERNOULLI = Family(
    "bernoulli",
    links=("logit", "probit"),
    likelihood=lambda link, classes, noise: Bernoulli() if link == "logit" else BernoulliProbit(),
    other_names=("logistic", "logit", "binary", "probit"),
)
BINOMIAL = Family("binomial", ("logit",), lambda link, classes, noise: Binomial())
FAMILIES = (BERNOULLI, BINOMIAL)


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
    return BERNOULLI.regression(X, y, prior_variance, response, weights, offset)


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
    return BERNOULLI.regression(X, y, prior_variance, response, weights, offset, link="probit")


def binomial_regression(
    X: ArrayLike,
    y: ArrayLike,
    trials: ArrayLike,
    prior_variance: ArrayLike,
    *,
    offset: ArrayLike | None = None,
) -> ModelPosterior:
    """Bayesian logistic regression for counts, y_i of trials_i, θ_j ~ N(0, prior_variance).

    **Arguments:** those of `logistic_regression`, without row stores and `weights`; `y` is the
    number of successes per row and `trials` the number of trials per row.

    **Returns:** a posterior with the parameter `beta`.
    """
    successes, tried = (
        np.asarray(check_numeric(name, values), np.float64)
        for name, values in (("y", y), ("trials", trials))
    )
    if successes.shape != tried.shape:
        raise InvalidInput("trials", f"have the shape of y {successes.shape}", tried.shape)
    bad = (successes < 0) | (successes > tried) | (tried < 1)
    bad |= (successes % 1 != 0) | (tried % 1 != 0)
    if bad.any():
        row = int(np.argmax(bad))
        found = f"{successes[row]:g} of {tried[row]:g} in row {row}"
        raise InvalidInput("y", "be a count from 0 to the number of trials in every row", found)
    data = regression_data(X, successes / tried, None, tried, offset)
    return regression_posterior(data, Binomial(), normal_prior(prior_variance, data))
