"""Logistic and softmax regression. Probabilities are averages over draws.

    P(y = k | x, data) = E[softmax_k(0, z₁, …, z_K) | data]

The average is less extreme than the probability at the posterior mean of the coefficients: the
uncertainty of z draws it towards 1/2.
"""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets

from ..core.errors import InvalidInput
from ..models import logistic_regression, softmax_regression
from ..models.posterior import ModelPosterior
from .estimator import AbstractTallEstimator, Response


class AbstractTallClassifier(ClassifierMixin, AbstractTallEstimator):
    """Classes with one linear predictor for each but the first, whose predictor is 0."""

    classes_: np.ndarray

    @abc.abstractmethod
    def _check_number_of_classes(self, number: int) -> None:
        """Raise if the model is not made for so many classes."""

    def _response(self, y: np.ndarray) -> Response:
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInput("y", "have at least two classes", f"one class, {self.classes_[0]!r}")
        self._check_number_of_classes(len(self.classes_))
        return Response(numbers.astype(np.float64), classes=self._predictor_names())

    @abc.abstractmethod
    def _predictor_names(self) -> tuple[str, ...] | None:
        """Names of the linear predictors, if there may be several."""

    def _rows_of_zeros_are_neutral(self) -> bool:
        return True

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n k"]:
        """The posterior predictive probability of each class.

        **Arguments:**

        - `X`: rows with the columns of `fit`.

        **Returns:** one row per row of X, and one column per class in the order of `classes_`.
        """
        rows = self._checked_rows(X)
        return self._predictor_draws().average(rows, _class_probabilities)

    def decision_function(self, X: Any) -> Float[np.ndarray, "*n"]:
        """The logarithms of `predict_proba`; with two classes, the log odds of the second.

        **Arguments:**

        - `X`: rows with the columns of `fit`.

        **Returns:** one number per row with two classes; one per row and class with more.
        """
        probabilities = self.predict_proba(X)
        logs = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
        return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row.

        **Arguments:**

        - `X`: rows with the columns of `fit`.

        **Returns:** one of `classes_` per row.
        """
        best = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[best]


class TallLogisticRegression(AbstractTallClassifier):
    """Bayesian logistic regression of two classes.

    A slope, per standard deviation of its column, has the prior N(0, prior_scale²).

    **Arguments:**

    - `prior_scale`: prior sd of the slopes: a number, or one per column. It applies to columns with
      sd 1 if `standardise`, else to the columns as they are.
    - `intercept_prior_scale`: prior sd of the intercept, at the means of the columns if
      `standardise`.
    - `fit_intercept`: whether there is an intercept.
    - `standardise`: whether columns are centred (if there is an intercept) and scaled before the
      model sees them. Results are in the units of X in any case.
    - `ess`: goal in effective draws per parameter.
    - `method`: a method such as `tallmc.sgld_cv(...)`. None chooses it for the data.
    - `max_seconds`: limit on the seconds of `fit`.
    - `random_state`: seed of the draws: an int, a `RandomState`, or None for a new seed per fit.
    - `verbose`: whether to show progress on terminals and in notebooks.

    After `fit`: `classes_`; `coef_` (1, n_features) and `intercept_` (1,), posterior means;
    `draws_`, the `tallmc.Draws` of `coef` and `intercept`; `health_`, the verdict on them;
    `n_iter_`, draws per chain; `n_features_in_` and `feature_names_in_`.

    >>> import numpy as np
    >>> X = np.linspace(-2, 2, 100)[:, None]
    >>> y = np.where(X[:, 0] + np.sin(20 * X[:, 0]) > 0, "yes", "no")
    >>> model = TallLogisticRegression(random_state=0).fit(X, y)
    >>> model.predict([[-1.5], [1.5]])
    array(['no', 'yes'], dtype='<U3')
    >>> model.predict_proba([[0.0]]).shape
    (1, 2)
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _check_number_of_classes(self, number: int) -> None:
        if number > 2:
            # scikit-learn looks for the first sentence.
            raise ValueError(
                "Only binary classification is supported. The type of the target is multiclass: "
                f"y has {number} classes. Use TallSoftmaxRegression."
            )

    def _predictor_names(self) -> None:
        return None

    def _posterior(
        self, x: Float[np.ndarray, "n c"], y: Float[np.ndarray, " n"], response: Response
    ) -> ModelPosterior:
        return logistic_regression(x, y, prior_variance=1.0)

    def _keep_means(
        self, coef: Float[np.ndarray, "k p"], intercept: Float[np.ndarray, " k"]
    ) -> None:
        self.coef_, self.intercept_ = coef, intercept


class TallSoftmaxRegression(AbstractTallClassifier):
    """Bayesian softmax regression of two or more classes.

    The first class is the baseline with coefficients 0. A slope of another class, per standard
    deviation of its column, has the prior N(0, prior_scale²).

    **Arguments:** those of `TallLogisticRegression`.

    After `fit`: as `TallLogisticRegression`, with `coef_` (n_classes, n_features) and `intercept_`
    (n_classes,), whose first rows are 0. `draws_` has the other rows.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 90)[:, None]
    >>> y = np.repeat(["low", "middle", "top"], 30)
    >>> model = TallSoftmaxRegression(random_state=0).fit(X, y)
    >>> model.predict([[-2.5], [0.0], [2.5]])
    array(['low', 'middle', 'top'], dtype='<U6')
    """

    def _check_number_of_classes(self, number: int) -> None:
        pass

    def _predictor_names(self) -> tuple[str, ...]:
        return tuple(map(str, self.classes_[1:]))

    def _posterior(
        self, x: Float[np.ndarray, "n c"], y: Float[np.ndarray, " n"], response: Response
    ) -> ModelPosterior:
        return softmax_regression(x, y, prior_variance=1.0, classes=len(self.classes_))

    def _keep_means(
        self, coef: Float[np.ndarray, "k p"], intercept: Float[np.ndarray, " k"]
    ) -> None:
        baseline = np.zeros((1, coef.shape[1]))
        self.coef_ = np.concatenate([baseline, coef])
        self.intercept_ = np.concatenate([[0.0], intercept])


def _class_probabilities(z: Float[np.ndarray, "b draws k"]) -> Float[np.ndarray, "b draws m"]:
    """Probabilities of all classes; those of two have no cancellation."""
    if z.shape[-1] == 1:
        return np.concatenate([expit(-z), expit(z)], axis=-1)
    return softmax(np.concatenate([np.zeros_like(z[..., :1]), z], axis=-1), axis=-1)
