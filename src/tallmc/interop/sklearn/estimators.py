"""Four regressions of `tallmc.models` as estimators of scikit-learn.

    P(y = k | x, data) = E[softmax_k(0, z₁, …, z_K) | data]         logistic, softmax
    E[y | x] = E[z],       Var[y | x] = Var[z] + E[σ²]              linear
    E[y | x] = E[e^z],     Var[y | x] = Var[e^z] + E[e^z]           Poisson

Moments on the right are over the draws; means and standard deviations are those of a new
observation. An averaged probability is less extreme than the probability at the posterior mean of
the coefficients: the uncertainty of z draws it towards 1/2.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_regressor
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ..._api import sample
from ..._core.arrays import AbstractQuantities, Layout, check_numeric
from ..._core.errors import InvalidInput, PreparationError, SamplingWarning, check_number, warn
from ...methods.abstract import AbstractMethod
from ...methods.automatic import FEW_ROWS
from ...models import linear_regression, logistic_regression, softmax_regression
from ...models.design import Observations, normal_prior, regression_data
from ...models.families.poisson import Poisson
from ...models.posterior import ModelPosterior
from ...models.predictive import RegressionPredictive
from ...models.regression import regression_posterior
from ...results.draws import Draws

Matrix = Float[np.ndarray, "rows columns"]
Vector = Float[np.ndarray, " rows"]
Weights = Vector | None
COEF, INTERCEPT, SCALE = "coef", "intercept", "scale"
_FEATURE, _CLASS = "feature", "class"
_INPUT_TYPES = (np.float64, np.float32)
_NUMBERS_PER_BLOCK = 2**21  # linear predictors that exist at once bound the memory
_MOST_ROWS_TO_LOOK_AT = 20_000
_ROUNDINGS = 30.0  # least posterior sd of a coefficient, in units of its rounding
_ROWS_PER_BLOCK = 2**16
_CONSTANT = 1e-12
"""Columns whose sd is at most this multiple of their size are constant up to rounding."""
_UNSEEN = 1e-6
"""Largest information of all rows on a direction that is left to the prior; the prior's is 1."""
_MOST_COLUMNS = 2_000  # with more columns, the default method uses no matrix of this size either
_FEWEST_ROWS = 256


@dataclasses.dataclass(frozen=True)
class ColumnScaling:
    """How columns of X become columns of the design matrix, and the way back.

        design      D = (X − c) F V           one standard normal prior per column
        slopes      coef = F V u              u: the sampled parameters of these columns
        intercept   sampled − cᵀ coef

    c are the means of the columns, F = diag(prior scale / sd). V is the identity unless columns are
    collinear. Then V are the eigenvectors of the columns' cross products. An orthogonal V leaves
    the prior as it is. The data do not depend on u along an eigenvector with eigenvalue 0, so that
    column of D is set to exact zeros. Otherwise float32 could not tell the curvature of the prior
    in that direction, 1, from the rounding of the curvature of N rows in the others.
    """

    centre: Float[np.ndarray, " p"]
    factor: Float[np.ndarray, " p"]
    rotation: Float[np.ndarray, "p p"] | None
    seen: np.ndarray

    @classmethod
    def of(
        cls,
        X: Float[np.ndarray, "n p"],
        prior_scale: Float[np.ndarray, " p"],
        *,
        centred: bool,
        standardised: bool,
        weights: Weights = None,
    ) -> ColumnScaling:
        """Measure the columns: means if `centred`, sds if `standardised`, collinearity."""
        p = X.shape[1]
        centre, n_rows = np.zeros(p), float(len(X) if weights is None else weights.sum())
        if centred and weights is None:
            centre = X.mean(axis=0, dtype=np.float64)
        elif centred:
            sums = sum(np.sum(w * block, axis=0) for block, w in _blocks(X, weights))
            centre = sums / n_rows
        factor = prior_scale
        if standardised:
            squares = sum(
                np.sum(w * (block - centre) ** 2, axis=0) for block, w in _blocks(X, weights)
            )
            sd = np.sqrt(squares / n_rows)
            size = np.maximum(np.abs(centre), np.finfo(np.float64).tiny)
            factor = prior_scale / np.where(sd > _CONSTANT * size, sd, 1.0)
        plain = cls(centre, factor, None, np.ones(p, bool))
        if p > _MOST_COLUMNS:
            return plain
        products = np.zeros((p, p))
        for block, w in _blocks(X, weights):
            columns = (block - centre) * factor
            products += (w * columns).T @ columns
        information, directions = np.linalg.eigh(products)
        # Rounding of the products limits how small an eigenvalue can be recognised.
        rounding = p * np.finfo(np.float64).eps * information[-1]
        seen = information > max(_UNSEEN, rounding)
        return plain if seen.all() else cls(centre, factor, directions, seen)

    def design(
        self, X: Float[np.ndarray, "n p"], intercept_scale: float | None, dtype: np.dtype
    ) -> Float[np.ndarray, "n c"]:
        """D, with a first column for the intercept unless `intercept_scale` is None."""
        first = 0 if intercept_scale is None else 1
        result = np.empty((len(X), first + X.shape[1]), dtype)
        result[:, :first] = intercept_scale or 0.0
        start = 0
        for block, _ in _blocks(X):
            columns = (block - self.centre) * self.factor
            if self.rotation is not None:
                columns = np.where(self.seen, columns @ self.rotation, 0.0)
            result[start : start + len(block), first:] = columns
            start += len(block)
        return result

    def column_names(self, features: Sequence[str], intercept: bool) -> list[str]:
        """Names of the columns of D; a rotated column is named after its largest parts."""
        names = list(features)
        if self.rotation is not None:
            large = np.abs(self.rotation) > 0.1 * np.abs(self.rotation).max(axis=0)
            parts = [list(itertools.compress(features, column)) for column in large.T]
            names = [
                f"a combination of {', '.join(some[:4])}" if len(some) > 1 else some[0]
                for some in parts
            ]
        return ["intercept", *names] if intercept else names

    def slopes(self, sampled: Float[np.ndarray, "*k p"]) -> Float[np.ndarray, "*k p"]:
        rotated = sampled if self.rotation is None else sampled @ self.rotation.T
        return rotated * self.factor


def check_scales(parameter: str, scales: ArrayLike, n_columns: int) -> Float[np.ndarray, " p"]:
    """Prior scales as one per column; raises unless all are positive and finite."""
    values = np.asarray(check_numeric(parameter, scales), np.float64)
    if values.shape not in ((), (n_columns,)) or not ((values > 0) & np.isfinite(values)).all():
        rule = f"be positive and finite, a number or one per column ({n_columns})"
        raise InvalidInput(parameter, rule, scales)
    return np.broadcast_to(values, (n_columns,))


def with_neutral_rows(
    x: Float[np.ndarray, "n c"], y: Float[np.ndarray, " n"], weights: Weights = None
) -> tuple[Float[np.ndarray, "m c"], Float[np.ndarray, " m"], Float[np.ndarray, " m"] | None]:
    """Append rows of zeros to few rows, so that data sets of many sizes share compiled programs.

    Programs that use all rows in every step are compiled for the number of rows. A row of zeros has
    the same likelihood for all coefficients, unless the model has further parameters.
    """
    n_rows = len(x)
    if n_rows > FEW_ROWS:
        return x, y, weights
    wanted = min(max(_FEWEST_ROWS, 1 << (n_rows - 1).bit_length()), FEW_ROWS)
    missing = wanted - n_rows
    if weights is not None:
        weights = np.pad(weights, (0, missing), constant_values=1.0)
    return np.pad(x, ((0, missing), (0, 0))), np.pad(y, (0, missing)), weights


def _blocks(
    X: Float[np.ndarray, "n p"], weights: Weights = None
) -> Iterator[tuple[Float[np.ndarray, "b p"], Any]]:
    """Blocks of rows, and a column of their weights, or 1."""
    for start in range(0, len(X), _ROWS_PER_BLOCK):
        some = slice(start, start + _ROWS_PER_BLOCK)
        yield np.asarray(X[some], np.float64), 1.0 if weights is None else weights[some, None]


@dataclasses.dataclass(frozen=True)
class NewColumns:
    """Turns a matrix with the columns of the fit into rows of the model: `draws_.predict(X)`."""

    scaling: ColumnScaling
    intercept_scale: float | None

    def __call__(
        self, new_rows: Any, *, response: bool, offset: ArrayLike | None, trials: ArrayLike | None
    ) -> Observations:
        if response or offset is not None or trials is not None:
            rule = "be a matrix, without responses, offsets and trials"
            raise InvalidInput("new rows", rule, "these", "Use the methods of the estimator.")
        X = np.asarray(check_numeric("new rows", np.asarray(new_rows)), np.float64)
        n_columns = len(self.scaling.centre)
        if X.ndim != 2 or not len(X) or X.shape[1] != n_columns or not np.isfinite(X).all():
            rule = f"be a finite matrix with {n_columns} columns, those of the fit"
            raise InvalidInput("new rows", rule, f"shape {X.shape}")
        dtype = jnp.result_type(float)
        x = self.scaling.design(X, self.intercept_scale, dtype)
        return Observations(jnp.asarray(x), jnp.asarray(np.full(len(x), np.nan), dtype))


class CoefficientsOfColumns(AbstractQuantities):
    """`coef` and `intercept` in the units of X and y, and the noise `scale` if it is unknown."""

    structure = None

    def __init__(
        self,
        layout: Layout,
        scaling: ColumnScaling,
        intercept_scale: float | None,
        response: tuple[float, float],
        features: Sequence[str],
        classes: Sequence[str] | None,
    ):
        self.layout, self.scaling, self.intercept_scale = layout, scaling, intercept_scale
        self.response_centre, self.response_scale = response
        per_class = () if classes is None else (_CLASS,)
        n_classes = () if classes is None else (len(classes),)
        self.shapes = {COEF: (*n_classes, len(features))}
        self.dims = {COEF: (*per_class, _FEATURE)}
        self.coords = {_FEATURE: tuple(map(str, features))}
        if classes is not None:
            self.coords[_CLASS] = tuple(map(str, classes))
        if intercept_scale is not None:
            self.shapes[INTERCEPT], self.dims[INTERCEPT] = n_classes, per_class
        if "log_scale" in layout.names:
            self.shapes[SCALE], self.dims[SCALE] = (), ()

    def of(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        leaves = self.layout.split(np.asarray(positions, np.float64))
        beta = leaves["beta"]
        if len(self.shapes[COEF]) == 2:
            # Two classes have one linear predictor, whose coefficients are a vector.
            is_one = beta.ndim == np.ndim(positions)
            beta = beta[..., None, :] if is_one else np.swapaxes(beta, -1, -2)
        first = int(self.intercept_scale is not None)
        slopes = self.response_scale * self.scaling.slopes(beta[..., first:])
        found = {COEF: slopes}
        if self.intercept_scale is not None:
            at_centre = self.response_scale * self.intercept_scale * beta[..., 0]
            found[INTERCEPT] = self.response_centre + at_centre - slopes @ self.scaling.centre
        if SCALE in self.shapes:
            found[SCALE] = self.response_scale * np.exp(leaves["log_scale"])
        return found


@dataclasses.dataclass(frozen=True)
class PredictorDraws:
    """Draws of the coefficients of k linear predictors, from all chains that completed.

    E[g(z) | data] ≈ Σ_s w_s g(z_s),   z_s = X coef_s + intercept_s,   Σ_s w_s = 1
    """

    slopes: Float[np.ndarray, "draws k p"]
    intercepts: Float[np.ndarray, "draws k"]
    weights: Float[np.ndarray, " draws"]

    def average(
        self,
        X: Float[np.ndarray, "n p"],
        function: Callable[[Float[np.ndarray, "b draws k"]], Float[np.ndarray, "b draws m"]],
    ) -> Float[np.ndarray, "n m"]:
        """The average over draws of a function of the linear predictors of each row."""
        draws, k, p = self.slopes.shape
        rows = max(1, _NUMBERS_PER_BLOCK // (draws * k))
        flat = self.slopes.reshape(draws * k, p).T
        means = []
        for start in range(0, len(X), rows):
            block = np.asarray(X[start : start + rows], np.float64)
            z = (block @ flat).reshape(-1, draws, k) + self.intercepts
            means.append(np.einsum("bsm,s->bm", function(z), self.weights))
        return np.concatenate(means)


def weights_of(draws: Draws) -> Float[np.ndarray, " draws"]:
    """The weight of each draw of the chains that completed; their sum is 1."""
    shape = draws.positions[draws.ok].shape[:2]
    weights = np.ones(shape) if draws.weights is None else draws.weights[draws.ok]
    return weights.reshape(-1) / weights.sum()


class Response(NamedTuple):
    """The response as the model sees it, (y − centre)/scale."""

    values: Float[np.ndarray, " n"]
    centre: float = 0.0
    scale: float = 1.0
    classes: tuple[str, ...] | None = None
    """Names of the classes after the first, if there is one linear predictor for each."""


_WARNED: set[str] = set()
"""Warnings of this process, without their numbers. A search of many fits would repeat them."""


def _warn_once(message: str) -> None:
    """Warn unless an estimator has warned of the same; `report_` has the doubts of each fit."""
    kind = re.sub(r"[\d.,]+", "#", message)
    if kind not in _WARNED:
        _WARNED.add(kind)
        warn(message, SamplingWarning)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class AbstractTallEstimator(BaseEstimator, abc.ABC):
    """A regression of `tallmc.models` with the interface of scikit-learn."""

    prior_scale: ArrayLike = 2.5
    intercept_prior_scale: float = 10.0
    fit_intercept: bool = True
    standardise: bool = True
    ess: float = 1000.0
    method: AbstractMethod | None = None
    max_seconds: float | None = None
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False

    @abc.abstractmethod
    def _response(self, y: np.ndarray, weights: Weights) -> Response:
        """The checked response in the form of the model."""

    @abc.abstractmethod
    def _posterior(
        self, x: Matrix, y: Vector, weights: Weights, response: Response
    ) -> ModelPosterior:
        """The posterior with standard normal priors."""

    def _rows_of_zeros_are_neutral(self) -> bool:
        """Whether a row of zeros has the same likelihood for all parameters."""
        return True

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Draw from the posterior.

        A doubt about the draws is a `SamplingWarning`, once per process for each kind of doubt, so
        that a search does not repeat it. `report_` has the doubts of each fit.

        Ctrl-C raises `KeyboardInterrupt`, so that it also ends a search or a cross-validation. If
        there are draws by then, the estimator is fitted with these.

        **Arguments:**

        - `X`: the columns, of shape (n_samples, n_features), without an intercept: an array or a
          table of numbers.
        - `y`: the response of each row.
        - `sample_weight`: how often each row counts, numbers that are not negative. A row of weight
          2 is two rows, and a row of weight 0 none.
        """
        X, y = validate_data(
            self, X, y, dtype=_INPUT_TYPES, ensure_min_samples=2, y_numeric=is_regressor(self)
        )
        weights = None
        if sample_weight is not None:
            X, y, weights = _weighted_rows(X, y, sample_weight)
        response = self._response(y, weights)
        scaling = ColumnScaling.of(
            X,
            check_scales("prior_scale", self.prior_scale, self.n_features_in_),
            centred=bool(self.fit_intercept and self.standardise),
            standardised=bool(self.standardise),
            weights=weights,
        )
        given = self.intercept_prior_scale if self.fit_intercept else 1.0
        checked = check_number("intercept_prior_scale", given, 0, low_open=True)
        intercept_scale = checked if self.fit_intercept else None
        x, target = scaling.design(X, intercept_scale, jnp.result_type(float)), response.values
        if self.method is None and self._rows_of_zeros_are_neutral():
            x, target, weights = with_neutral_rows(x, target, weights)
        posterior = self._posterior(x, target, weights, response)
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
            layout = posterior.layout.labelled({"beta": columns})
            model = dataclasses.replace(model, layout=layout)
        predictive = RegressionPredictive(
            model,
            encoder=NewColumns(scaling, intercept_scale),
            shift=response.centre,
            scale=response.scale,
        )
        with warnings.catch_warnings():  # `report_` has all of them
            warnings.simplefilter("ignore", SamplingWarning)
            draws = sample(
                ModelPosterior(model, posterior.rows, quantities, predictive=predictive),
                self.method,
                ess=self.ess,
                max_seconds=self.max_seconds,
                seed=check_random_state(self.random_state).randint(np.iinfo(np.int32).max),
                progress=None if self.verbose else False,
            )
        if len(x) > len(X):
            draws = _without_neutral_rows(draws, len(X))
        self._keep(draws)
        for doubt in draws.report.doubts[:1]:
            _warn_once(f"{type(self).__name__}: {doubt} See report_ for all doubts.")
        if draws.stopped_by == "Ctrl-C":
            raise KeyboardInterrupt
        return self

    def _feature_names(self) -> tuple[str, ...]:
        default = [f"x{j}" for j in range(self.n_features_in_)]
        return tuple(map(str, getattr(self, "feature_names_in_", default)))

    def _keep(self, draws: Draws) -> None:
        n_draws = draws.positions.shape[1]
        if not n_draws or not draws.ok.any():
            ended = draws.stopped_by or ", ".join(sorted({o.name for o in draws.outcomes}))
            raise PreparationError(f"no chain has draws ({ended}); see `max_seconds` and `method`")
        self.draws_, self.report_, self.n_iter_ = draws, draws.report, n_draws
        predictors = self._predictor_draws()
        coef = np.einsum("skp,s->kp", predictors.slopes, predictors.weights)
        self._keep_means(coef, predictors.weights @ predictors.intercepts)

    @abc.abstractmethod
    def _keep_means(self, coef: Matrix, intercept: Vector) -> None:
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


def _weighted_rows(
    X: Matrix, y: np.ndarray, sample_weight: Any
) -> tuple[Float[np.ndarray, "m columns"], np.ndarray, Float[np.ndarray, " m"]]:
    """The rows that count, and their weights."""
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
    if (weights < 0).any():
        row = int(np.argmax(weights < 0))
        raise InvalidInput("sample_weight", "not be negative", f"{weights[row]:g} in row {row}")
    counted = weights > 0
    if not counted.any():
        raise InvalidInput("sample_weight", "not all be zero", "0 in every row")
    return X[counted], y[counted], weights[counted]


def _without_neutral_rows(draws: Draws, n_rows: int) -> Draws:
    """The same draws, whose report counts the rows of the user."""
    account, padded = draws.account, draws.settings["n_rows"]
    if account is not None:
        said = (
            reason.replace(f"{padded:,} rows", f"{n_rows:,} rows") for reason in account.reasons
        )
        account = dataclasses.replace(account, reasons=tuple(said))
    settings = {**draws.settings, "n_rows": n_rows}
    return dataclasses.replace(draws, account=account, settings=settings)


class AbstractTallClassifier(ClassifierMixin, AbstractTallEstimator):
    """Classes with one linear predictor for each but the first, whose predictor is 0."""

    classes_: np.ndarray

    def _response(self, y: np.ndarray, weights: Weights) -> Response:
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInput("y", "have at least two classes", f"one class, {self.classes_[0]!r}")
        return Response(numbers.astype(np.float64), classes=tuple(map(str, self.classes_[1:])))

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n k"]:
        """Posterior predictive probabilities, one column per class in the order of `classes_`."""
        rows = self._checked_rows(X)
        return self._predictor_draws().average(rows, _class_probabilities)

    def decision_function(self, X: Any) -> Float[np.ndarray, "*n"]:
        """Logarithms of `predict_proba`; with two classes the log odds of the second, (n,)."""
        logs = np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))
        return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs

    def predict(self, X: Any) -> np.ndarray:
        """The most probable of `classes_` for each row."""
        chances = self.predict_proba(X)  # first: raises NotFittedError before a fit
        return self.classes_[np.argmax(chances, axis=1)]


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
    - `method`: a method such as `tallmc.methods.sgld_cv(...)`. None chooses it for the data.
    - `max_seconds`: limit on the seconds of `fit`.
    - `random_state`: seed of the draws: an int, a `RandomState`, or None for a new seed per fit.
    - `verbose`: whether to show progress on terminals and in notebooks.

    After `fit`: `classes_`; `coef_` (1, n_features) and `intercept_` (1,), posterior means;
    `draws_`, the `tallmc.Draws` of `coef` and `intercept`; `report_`, the verdict on them;
    `n_iter_`, draws per chain; `n_features_in_` and `feature_names_in_`.
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _response(self, y: np.ndarray, weights: Weights) -> Response:
        response = super()._response(y, weights)
        if len(self.classes_) > 2:
            # scikit-learn looks for the first sentence.
            raise ValueError(
                "Only binary classification is supported. The type of the target is multiclass: "
                f"y has {len(self.classes_)} classes. Use TallSoftmaxRegression."
            )
        return response._replace(classes=None)

    def _posterior(
        self, x: Matrix, y: Vector, weights: Weights, response: Response
    ) -> ModelPosterior:
        return logistic_regression(x, y, prior_variance=1.0, weights=weights)

    def _keep_means(self, coef: Matrix, intercept: Vector) -> None:
        self.coef_, self.intercept_ = coef, intercept


class TallSoftmaxRegression(AbstractTallClassifier):
    """Bayesian softmax regression of two or more classes.

    The first class is the baseline with coefficients 0. A slope of another class, per standard
    deviation of its column, has the prior N(0, prior_scale²).

    **Arguments:** those of `TallLogisticRegression`.

    After `fit`: as `TallLogisticRegression`, with `coef_` (n_classes, n_features) and `intercept_`
    (n_classes,), whose first rows are 0. `draws_` has the other rows.
    """

    def _posterior(
        self, x: Matrix, y: Vector, weights: Weights, response: Response
    ) -> ModelPosterior:
        classes = len(self.classes_)
        return softmax_regression(x, y, prior_variance=1.0, classes=classes, weights=weights)

    def _keep_means(self, coef: Matrix, intercept: Vector) -> None:
        self.coef_ = np.concatenate([np.zeros((1, coef.shape[1])), coef])
        self.intercept_ = np.concatenate([[0.0], intercept])


def _class_probabilities(z: Float[np.ndarray, "b draws k"]) -> Float[np.ndarray, "b draws m"]:
    """Probabilities of all classes; those of two have no cancellation."""
    if z.shape[-1] == 1:
        return np.concatenate([expit(-z), expit(z)], axis=-1)
    return softmax(np.concatenate([np.zeros_like(z[..., :1]), z], axis=-1), axis=-1)


class AbstractTallRegressor(RegressorMixin, AbstractTallEstimator):
    """A response with one linear predictor."""

    @abc.abstractmethod
    def _moments(self, predictors: PredictorDraws, rows: Matrix) -> tuple[Vector, Vector]:
        """Mean and variance of a new observation at each row."""

    def predict(self, X: Any, return_std: bool = False) -> Vector | tuple[Vector, Vector]:
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

    def _keep_means(self, coef: Matrix, intercept: Vector) -> None:
        self.coef_, self.intercept_ = coef[0], float(intercept[0])


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
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
    """

    noise_variance: float | None = None

    def _response(self, y: np.ndarray, weights: Weights) -> Response:
        values = np.asarray(y, np.float64)
        if not self.standardise:
            return Response(values)
        centre = float(np.average(values, weights=weights)) if self.fit_intercept else 0.0
        scale = float(np.sqrt(np.average((values - centre) ** 2, weights=weights))) or 1.0
        return Response((values - centre) / scale, centre, scale)

    def _rows_of_zeros_are_neutral(self) -> bool:
        return self.noise_variance is not None

    def _posterior(
        self, x: Matrix, y: Vector, weights: Weights, response: Response
    ) -> ModelPosterior:
        if self.noise_variance is None:
            known = _variance_of_rounding(x, y)
        else:
            given = check_number("noise_variance", self.noise_variance, 0, low_open=True)
            known = given / response.scale**2
        self.noise_variance_ = np.nan if known is None else known * response.scale**2
        return linear_regression(x, y, prior_variance=1.0, noise_variance=known, weights=weights)

    def _keep_means(self, coef: Matrix, intercept: Vector) -> None:
        super()._keep_means(coef, intercept)
        if SCALE in self.draws_.values:
            scales = self.draws_.values[SCALE][self.draws_.ok].reshape(-1)
            self.noise_variance_ = float(weights_of(self.draws_) @ scales**2)

    def _moments(self, predictors: PredictorDraws, rows: Matrix) -> tuple[Vector, Vector]:
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
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def _response(self, y: np.ndarray, weights: Weights) -> Response:
        if (y < 0).any():
            row = int(np.argmax(y < 0))
            raise InvalidInput("y", "not be negative", f"{y[row]:g} in row {row}")
        return Response(np.asarray(y, np.float64))

    def _posterior(
        self, x: Matrix, y: Vector, weights: Weights, response: Response
    ) -> ModelPosterior:
        data = regression_data(x, y, None, weights)
        return regression_posterior(data, Poisson(), normal_prior(1.0, data))

    def _moments(self, predictors: PredictorDraws, rows: Matrix) -> tuple[Vector, Vector]:
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
    _warn_once(
        "y is a linear function of the columns up to rounding: its noise cannot be estimated and "
        "is taken to be that of rounding. Pass noise_variance if it is known."
    )
    return resolved**2
