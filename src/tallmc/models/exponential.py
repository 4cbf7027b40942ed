"""Logistic, probit, binomial and Poisson regression with independent Gaussian priors."""

from __future__ import annotations

import numpy as np
from jaxtyping import ArrayLike

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput
from ..rows.sharded import ShardedRows
from .design import normal_prior, regression_data
from .families import Bernoulli, BernoulliProbit, Binomial, Poisson
from .posterior import ModelPosterior
from .regression import regression_posterior


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
    - `prior_variance`: a number, or one per coefficient.
    - `response`: the name of the response, if X is a row store; then there is no `y`.
    - `weights`: how many times each row counts; for a row store the name of a column.
    - `offset`: a number per row that is added to its predictor; for a row store the name of a
      column.

    **Returns:** a posterior with the parameter `beta`.

    **Raises:** `InvalidInput` if y is not 0 or 1 in every row, or X is not a finite matrix.

    >>> X = [[1.0, 0.5], [1.0, -2.0], [1.0, 1.5]]
    >>> posterior = logistic_regression(X, [1, 0, 1], prior_variance=10.0)
    >>> posterior.n_rows, posterior.dim
    (3, 2)
    """
    data = regression_data(X, y, response, weights, offset)
    data.check_response("be 0 or 1 in every row", lambda y: (y == 0) | (y == 1))
    return regression_posterior(data, Bernoulli(), normal_prior(prior_variance, data))


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

    **Arguments:**

    - `X`: the design matrix, with its own intercept column, as an array or a data frame; or the
      rows of a row store, from `tallmc.rows.open`.
    - `y`: 0 or 1 per row.
    - `prior_variance`: a number, or one per coefficient.
    - `response`: the name of the response, if X is a row store; then there is no `y`.
    - `weights`: how many times each row counts; for a row store the name of a column.
    - `offset`: a number per row that is added to its predictor; for a row store the name of a
      column.

    **Returns:** a posterior with the parameter `beta`.

    **Raises:** `InvalidInput` if y is not 0 or 1 in every row, or X is not a finite matrix.

    >>> X = [[1.0, 0.5], [1.0, -2.0], [1.0, 1.5]]
    >>> posterior = probit_regression(X, [1, 0, 1], prior_variance=10.0)
    >>> posterior.n_rows, posterior.dim
    (3, 2)
    """
    data = regression_data(X, y, response, weights, offset)
    data.check_response("be 0 or 1 in every row", lambda y: (y == 0) | (y == 1))
    return regression_posterior(data, BernoulliProbit(), normal_prior(prior_variance, data))


def poisson_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    *,
    response: str | None = None,
    weights: ArrayLike | str | None = None,
    offset: ArrayLike | str | None = None,
) -> ModelPosterior:
    """Bayesian Poisson regression with log link, y_i ∈ {0, 1, 2, …}, θ_j ~ N(0, prior_variance).

    The gradients are not Lipschitz, so adaptive sizes and Lipschitz weights do not apply.

    **Arguments:**

    - `X`: the design matrix, with its own intercept column, as an array or a data frame; or the
      rows of a row store, from `tallmc.rows.open`.
    - `y`: a count per row.
    - `prior_variance`: a number, or one per coefficient.
    - `response`: the name of the response, if X is a row store; then there is no `y`.
    - `weights`: how many times each row counts; for a row store the name of a column.
    - `offset`: a number per row that is added to its predictor; for a row store the name of a
      column.

    **Returns:** a posterior with the parameter `beta`.

    **Raises:** `InvalidInput` if y is not a count in every row, or X is not a finite matrix.

    >>> posterior = poisson_regression([[1.0], [1.0]], [2, 3], prior_variance=1.0)
    >>> posterior.gradient(posterior.init)  # Σ (e⁰ − y)
    Array([-3.], dtype=float32)
    """
    data = regression_data(X, y, response, weights, offset)
    data.check_response("be a count (0, 1, 2, …) in every row", lambda y: y >= 0)
    return regression_posterior(data, Poisson(), normal_prior(prior_variance, data))


def binomial_regression(
    X: ArrayLike,
    y: ArrayLike,
    trials: ArrayLike,
    prior_variance: ArrayLike,
    *,
    offset: ArrayLike | None = None,
) -> ModelPosterior:
    """Bayesian logistic regression for counts, y_i of trials_i, θ_j ~ N(0, prior_variance).

    **Arguments:**

    - `X`: the design matrix, with its own intercept column, as an array or a data frame.
    - `y`: the number of successes per row.
    - `trials`: the number of trials per row.
    - `prior_variance`: a number, or one per coefficient.
    - `offset`: a number per row that is added to its predictor.

    **Returns:** a posterior with the parameter `beta`.

    **Raises:** `InvalidInput` if y is not a count up to the trials in every row, or X is not a
    finite matrix.

    >>> posterior = binomial_regression([[1.0], [1.0]], [2, 0], [5, 3], prior_variance=1.0)
    >>> posterior.gradient(posterior.init)  # Σ (trials/2 − y)
    Array([2.], dtype=float32)
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
