"""Counts of successes in t trials, P = 1/(1 + e^−z), with y the share of successes.

t f = t [log(1 + e^z) − yz]:   the number of trials is the weight of the row
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import ArrayLike, PRNGKeyArray

from ..._core.arrays import check_numeric
from ..._core.errors import InvalidInput
from ..._rows.access import PerRow
from ..design import normal_prior, regression_data
from ..likelihood import softplus
from ..posterior import ModelPosterior
from ..regression import Family, regression_posterior
from .bernoulli import AbstractLogistic


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


FAMILY = Family("binomial", links=("logit",), likelihood=lambda link, classes, noise: Binomial())


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
