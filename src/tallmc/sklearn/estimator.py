"""What the four estimators share: settings, the design matrix, sampling and fitted attributes."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float
from sklearn.base import BaseEstimator, is_regressor
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ..api import sample
from ..core.errors import PreparationError, check_number
from ..methods.base import AbstractMethod
from ..models.posterior import ModelPosterior
from ..models.predictive import RegressionPredictive
from ..results.draws import Draws
from .design import ColumnScaling, check_scales, with_neutral_rows
from .new_columns import NewColumns
from .predictions import PredictorDraws, weights_of
from .quantities import COEF, INTERCEPT, CoefficientsOfColumns

_INPUT_TYPES = (np.float64, np.float32)


class Response(NamedTuple):
    """The response as the model sees it, (y − centre)/scale."""

    values: Float[np.ndarray, " n"]
    centre: float = 0.0
    scale: float = 1.0
    classes: tuple[str, ...] | None = None
    """Names of the classes after the first, if there is one linear predictor for each."""


class AbstractTallEstimator(BaseEstimator, abc.ABC):
    """A regression of `tallmc.models` with the interface of scikit-learn."""

    draws_: Draws
    n_features_in_: int

    def __init__(
        self,
        *,
        prior_scale: ArrayLike = 2.5,
        intercept_prior_scale: float = 10.0,
        fit_intercept: bool = True,
        standardise: bool = True,
        ess: float = 1000.0,
        method: AbstractMethod | None = None,
        max_seconds: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ):
        self.prior_scale = prior_scale
        self.intercept_prior_scale = intercept_prior_scale
        self.fit_intercept = fit_intercept
        self.standardise = standardise
        self.ess = ess
        self.method = method
        self.max_seconds = max_seconds
        self.random_state = random_state
        self.verbose = verbose

    @abc.abstractmethod
    def _response(self, y: np.ndarray) -> Response:
        """The checked response in the form of the model."""

    @abc.abstractmethod
    def _posterior(
        self, x: Float[np.ndarray, "n c"], y: Float[np.ndarray, " n"], response: Response
    ) -> ModelPosterior:
        """The posterior with standard normal priors."""

    @abc.abstractmethod
    def _rows_of_zeros_are_neutral(self) -> bool:
        """Whether a row of zeros has the same likelihood for all parameters."""

    def fit(self, X: Any, y: Any) -> Self:
        """Draw from the posterior.

        Ctrl-C raises `KeyboardInterrupt`, so that it also ends a search or a cross-validation. If
        there are draws by then, the estimator is fitted with these.

        **Arguments:**

        - `X`: the columns, of shape (n_samples, n_features), without an intercept: an array or a
          table of numbers.
        - `y`: the response of each row.

        **Returns:** the estimator itself.

        **Raises:** `InvalidInput`, a `ValueError`, if a setting or the data are invalid;
        `PreparationError` if there are no draws.
        """
        X, y = validate_data(
            self, X, y, dtype=_INPUT_TYPES, ensure_min_samples=2, y_numeric=is_regressor(self)
        )
        response = self._response(y)
        scaling = ColumnScaling.of(
            X,
            check_scales("prior_scale", self.prior_scale, self.n_features_in_),
            centred=bool(self.fit_intercept and self.standardise),
            standardised=bool(self.standardise),
        )
        intercept_scale = None
        if self.fit_intercept:
            intercept_scale = check_number(
                "intercept_prior_scale", self.intercept_prior_scale, 0, low_open=True
            )
        x, target = scaling.design(X, intercept_scale, jnp.result_type(float)), response.values
        if self.method is None and self._rows_of_zeros_are_neutral():
            x, target = with_neutral_rows(x, target)
        posterior = self._posterior(x, target, response)
        quantities = CoefficientsOfColumns(
            posterior.layout,
            scaling,
            intercept_scale,
            (response.centre, response.scale),
            self._feature_names(),
            response.classes,
        )
        model = posterior.model
        if response.classes is None:  # names of entries in messages; those of vectors only
            columns = scaling.column_names(self._feature_names(), intercept_scale is not None)
            labels = {"beta": columns}
            model = dataclasses.replace(model, layout=posterior.layout.labelled(labels))
        predictive = RegressionPredictive(
            model,
            encoder=NewColumns(scaling, intercept_scale),
            shift=response.centre,
            scale=response.scale,
        )
        draws = sample(
            ModelPosterior(model, posterior.rows, quantities, predictive=predictive),
            self.method,
            ess=self.ess,
            max_seconds=self.max_seconds,
            seed=check_random_state(self.random_state).randint(np.iinfo(np.int32).max),
            progress=None if self.verbose else False,
        )
        self._keep(draws)
        if draws.stopped_by == "Ctrl-C":
            raise KeyboardInterrupt
        return self

    def _feature_names(self) -> tuple[str, ...]:
        default = [f"x{j}" for j in range(self.n_features_in_)]
        return tuple(map(str, getattr(self, "feature_names_in_", default)))

    def _keep(self, draws: Draws) -> None:
        """Set the fitted attributes."""
        n_draws = draws.positions.shape[1]
        if not n_draws or not draws.ok.any():
            ended = draws.stopped_by or ", ".join(sorted({o.name for o in draws.outcomes}))
            raise PreparationError(f"no chain has draws ({ended}); see `max_seconds` and `method`")
        self.draws_, self.health_, self.n_iter_ = draws, draws.health, n_draws
        predictors = self._predictor_draws()
        coef = np.einsum("skp,s->kp", predictors.slopes, predictors.weights)
        intercept = predictors.weights @ predictors.intercepts
        self._keep_means(coef, intercept)

    @abc.abstractmethod
    def _keep_means(
        self, coef: Float[np.ndarray, "k p"], intercept: Float[np.ndarray, " k"]
    ) -> None:
        """Set `coef_` and `intercept_`, given the posterior means per linear predictor."""

    def _checked_rows(self, X: Any) -> Float[np.ndarray, "n p"]:
        """New rows; raises if the estimator is not fitted, or their columns are not those of X."""
        check_is_fitted(self, "draws_")
        return validate_data(self, X, reset=False, dtype=_INPUT_TYPES)

    def _predictor_draws(self) -> PredictorDraws:
        draws = self.draws_
        coef = draws.values[COEF][draws.ok]
        slopes = coef.reshape(coef.shape[0] * coef.shape[1], -1, self.n_features_in_)
        if INTERCEPT in draws.values:
            intercepts = draws.values[INTERCEPT][draws.ok].reshape(slopes.shape[:2])
        else:
            intercepts = np.zeros(slopes.shape[:2])
        return PredictorDraws(slopes, intercepts, weights_of(draws))
