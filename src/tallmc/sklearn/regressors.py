"""Linear and Poisson regression. Means and standard deviations are those of a new observation.

    linear    E[y | x] = E[z],       Var[y | x] = Var[z] + E[σ²]
    Poisson   E[y | x] = E[e^z],     Var[y | x] = Var[e^z] + E[e^z]

Moments on the right are over the draws.
"""

from __future__ import annotations

import abc
import warnings
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float
from sklearn.base import RegressorMixin
from sklearn.utils import Tags

from ..core.errors import InvalidInput, SamplingWarning, check_number
from ..methods.base import AbstractMethod
from ..models import linear_regression
from ..models.design import normal_prior, regression_data
from ..models.families import Poisson
from ..models.posterior import ModelPosterior
from ..models.regression import regression_posterior
from .estimator import AbstractTallEstimator, Response
from .predictions import PredictorDraws, weights_of
from .quantities import SCALE

_MOST_ROWS_TO_LOOK_AT = 20_000
_ROUNDINGS = 30.0
"""Least posterior sd of a coefficient, in units of its rounding."""


class AbstractTallRegressor(RegressorMixin, AbstractTallEstimator):
    """A response with one linear predictor."""

    @abc.abstractmethod
    def _moments(
        self, predictors: PredictorDraws, rows: Float[np.ndarray, "n p"]
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Mean and variance of a new observation at each row."""

    def predict(
        self, X: Any, return_std: bool = False
    ) -> Float[np.ndarray, " n"] | tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """The mean of the posterior predictive distribution at each row.

        **Arguments:**

        - `X`: rows with the columns of `fit`.
        - `return_std`: whether to return its standard deviation, too: that of a new observation,
          with its noise and the uncertainty of the coefficients.

        **Returns:** the means, or the means and the standard deviations.
        """
        rows = self._checked_rows(X)
        mean, variance = self._moments(self._predictor_draws(), rows)
        return (mean, np.sqrt(variance)) if return_std else mean


class TallLinearRegression(AbstractTallRegressor):
    """Bayesian linear regression with Gaussian noise of unknown scale.

    If `standardise`, y has mean 0 (if there is an intercept) and sd 1 before the model sees it, so
    a slope has the prior N(0, (prior_scale · sd(y) / sd(column))²). The log of the noise scale has
    the prior N(log sd(y), 3²).

    **Arguments:** those of `TallLogisticRegression`, and

    - `noise_variance`: the variance of the noise, in the units of y, if it is known.

    After `fit`: as `TallLogisticRegression`, without `classes_`, with `coef_` (n_features,) and a
    number `intercept_`, and `noise_variance_`, the posterior mean of the variance of the noise.
    `draws_` also has the noise `scale` if it is unknown. If y is a linear function of the columns
    up to rounding, a `SamplingWarning` says so, and the noise is that of rounding. Unknown noise
    needs more rows than coefficients.

    >>> import numpy as np
    >>> X = np.arange(20.0)[:, None]
    >>> y = 3 * X[:, 0] + np.tile([-1.0, 1.0], 10)
    >>> model = TallLinearRegression(random_state=0).fit(X, y)
    >>> mean, sd = model.predict([[10.0]], return_std=True)
    >>> mean.round(), model.health_.trusted
    (array([30.]), True)
    """

    def __init__(
        self,
        *,
        prior_scale: ArrayLike = 2.5,
        intercept_prior_scale: float = 10.0,
        fit_intercept: bool = True,
        standardise: bool = True,
        noise_variance: float | None = None,
        ess: float = 1000.0,
        method: AbstractMethod | None = None,
        max_seconds: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ):
        super().__init__(
            prior_scale=prior_scale,
            intercept_prior_scale=intercept_prior_scale,
            fit_intercept=fit_intercept,
            standardise=standardise,
            ess=ess,
            method=method,
            max_seconds=max_seconds,
            random_state=random_state,
            verbose=verbose,
        )
        self.noise_variance = noise_variance

    def _response(self, y: np.ndarray) -> Response:
        values = np.asarray(y, np.float64)
        if not self.standardise:
            return Response(values)
        centre = float(values.mean()) if self.fit_intercept else 0.0
        scale = float(np.sqrt(np.mean((values - centre) ** 2))) or 1.0
        return Response((values - centre) / scale, centre, scale)

    def _rows_of_zeros_are_neutral(self) -> bool:
        return self.noise_variance is not None

    def _posterior(
        self, x: Float[np.ndarray, "n c"], y: Float[np.ndarray, " n"], response: Response
    ) -> ModelPosterior:
        if self.noise_variance is None:
            known = _variance_of_rounding(x, y)
        else:
            given = check_number("noise_variance", self.noise_variance, 0, low_open=True)
            known = given / response.scale**2
        self.noise_variance_ = np.nan if known is None else known * response.scale**2
        return linear_regression(x, y, prior_variance=1.0, noise_variance=known)

    def _keep_means(
        self, coef: Float[np.ndarray, "k p"], intercept: Float[np.ndarray, " k"]
    ) -> None:
        self.coef_, self.intercept_ = coef[0], float(intercept[0])
        if SCALE in self.draws_.values:
            scales = self.draws_.values[SCALE][self.draws_.ok].reshape(-1)
            self.noise_variance_ = float(weights_of(self.draws_) @ scales**2)

    def _moments(
        self, predictors: PredictorDraws, rows: Float[np.ndarray, "n p"]
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        mean = rows @ self.coef_ + self.intercept_
        deviations = PredictorDraws(
            predictors.slopes - self.coef_,
            predictors.intercepts - self.intercept_,
            predictors.weights,
        )
        return mean, deviations.average(rows, np.square)[:, 0] + self.noise_variance_


class TallPoissonRegressor(AbstractTallRegressor):
    """Bayesian Poisson regression with log link.

    A slope, per standard deviation of its column, has the prior N(0, prior_scale²). y may be any
    numbers that are not negative, as in scikit-learn's `PoissonRegressor`; counts are Poisson.

    **Arguments:** those of `TallLogisticRegression`.

    After `fit`: as `TallLogisticRegression`, without `classes_`, with `coef_` (n_features,) and a
    number `intercept_`.

    >>> import numpy as np
    >>> X = np.repeat([[0.0], [1.0]], 50, axis=0)
    >>> y = np.tile([2, 4], 50) * (1 + X[:, 0])
    >>> model = TallPoissonRegressor(random_state=0).fit(X, y)
    >>> model.predict([[0.0], [1.0]]).round()
    array([3., 6.])
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def _response(self, y: np.ndarray) -> Response:
        if (y < 0).any():
            row = int(np.argmax(y < 0))
            raise InvalidInput("y", "not be negative", f"{y[row]:g} in row {row}")
        return Response(np.asarray(y, np.float64))

    def _rows_of_zeros_are_neutral(self) -> bool:
        return True

    def _posterior(
        self, x: Float[np.ndarray, "n c"], y: Float[np.ndarray, " n"], response: Response
    ) -> ModelPosterior:
        data = regression_data(x, y, None)
        return regression_posterior(data, Poisson(), normal_prior(1.0, data))

    def _keep_means(
        self, coef: Float[np.ndarray, "k p"], intercept: Float[np.ndarray, " k"]
    ) -> None:
        self.coef_, self.intercept_ = coef[0], float(intercept[0])

    def _moments(
        self, predictors: PredictorDraws, rows: Float[np.ndarray, "n p"]
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        def mean_and_square(z: Float[np.ndarray, "b draws 1"]) -> Float[np.ndarray, "b draws 2"]:
            expected = np.exp(z)
            return np.concatenate([expected, expected**2], axis=-1)

        mean, square = predictors.average(rows, mean_and_square).T
        return mean, np.maximum(square - mean**2, 0.0) + mean


def _variance_of_rounding(x: Float[np.ndarray, "n c"], y: Float[np.ndarray, " n"]) -> float | None:
    """The least noise variance that the precision of x resolves, if the residuals are smaller.

    Without residuals the density of the noise scale has its mode near 0, where nothing is resolved.
    None if the residuals of a regression on some of the rows are large enough.
    """
    n_rows, n_columns = len(x), int(np.count_nonzero(x.any(axis=0)))
    if n_rows <= n_columns:
        rule = f"have more rows than coefficients ({x.shape[1]}) if the noise is unknown"
        cure = "Pass noise_variance, or use fewer columns."
        raise InvalidInput("X", rule, f"{n_rows} rows", cure)
    most = max(_MOST_ROWS_TO_LOOK_AT, 2 * n_columns)
    some = np.linspace(0, n_rows - 1, min(n_rows, most)).astype(int)
    some_x = x[some].astype(np.float64)
    beta = np.linalg.lstsq(some_x, y[some], rcond=None)[0]
    spread = np.sqrt(np.sum((beta * some_x) ** 2) / len(some))
    resolved = float(_ROUNDINGS * np.finfo(x.dtype).eps * spread * np.sqrt(n_rows))
    if resolved == 0 or np.sqrt(np.mean((y[some] - some_x @ beta) ** 2)) > resolved:
        return None
    warnings.warn(
        "y is a linear function of the columns up to rounding: its noise cannot be estimated and "
        "is taken to be that of rounding. Pass noise_variance if it is known.",
        SamplingWarning,
        stacklevel=4,
    )
    return resolved**2
