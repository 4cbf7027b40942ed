"""The law of the response of new rows, given a position.

    E(y | θ, x),   y ~ p(· | θ, x),   log p(y | θ, x) with all constants

A *predictive* turns rows of the user into rows of the model (`encode`), and computes these three as
pure functions of a position. Responses are in the units of the user: if the model sees
y' = (y − shift)/scale, then E y = shift + scale E y' and log p(y) = log p(y') − log scale.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..core.errors import InvalidInput
from ..core.pytrees import Uncompared
from ..rows.base import RowBlock
from .base import AbstractModel
from .families import AbstractFamily, Bernoulli, BernoulliProbit, Binomial, Poisson
from .generalised_linear import GeneralisedLinear
from .hierarchy import Hierarchical
from .linear_predictor import LinearPredictor
from .new_rows import regression_rows
from .observations import GroupedObservations, Observations, RegressionRows, weighted

Encoder = Callable[..., RegressionRows]
"""`encoder(new_rows, *, response, offset, trials)`, the rows of a model."""


class AbstractPredictive(eqx.Module):
    """The law of the response of new rows."""

    @property
    @abc.abstractmethod
    def response_name(self) -> str:
        """The name of the response."""

    @property
    @abc.abstractmethod
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes; None if the response is a number."""

    @abc.abstractmethod
    def encode(
        self,
        new_rows: Any,
        *,
        response: bool = False,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> RowBlock:
        """The rows of the model from rows of the user.

        **Raises:** `InvalidInput` if rows do not fit the model, or have no response although
        `response` is true.
        """

    @abc.abstractmethod
    def observed(self, rows: RowBlock) -> Float[Array, " n"] | None:
        """The responses of rows in the units of the user; NaN without one, None if unknown."""

    @abc.abstractmethod
    def mean(self, position: Float[Array, " d"], rows: RowBlock) -> Float[Array, "n ..."]:
        """E y per row; for several classes, the probability of each class."""

    @abc.abstractmethod
    def simulate(
        self, key: PRNGKeyArray, position: Float[Array, " d"], rows: RowBlock
    ) -> Float[Array, " n"]:
        """A draw of y per row; for classes, the number of the class."""

    @abc.abstractmethod
    def log_likelihood(self, position: Float[Array, " d"], rows: RowBlock) -> Float[Array, " n"]:
        """log p(y | θ, x) per row, times the weight of the row."""


class RegressionPredictive(AbstractPredictive):
    """The law of the response of a regression.

    **Arguments:**

    - `model`: the model of a regression.
    - `encoder`: `encoder(new_rows, *, response, offset, trials)` returns rows of the model. By
      default new rows are a design matrix, or a data frame with the columns of the fit.
    - `classes`: names of the classes. By default they are numbered.
    - `response_name`: the name of the response.
    - `shift`, `scale`: the model sees (y − shift)/scale.

    **Raises:** `InvalidInput` if the model is no regression.

    >>> import tallmc
    >>> posterior = tallmc.models.logistic_regression([[1.0], [2.0]], [0, 1], prior_variance=10.0)
    >>> predictive = RegressionPredictive(posterior.model)
    >>> predictive.mean(jnp.array([0.5]), predictive.encode([[0.0], [2.0]])).round(3)
    Array([0.5  , 0.731], dtype=float32)
    """

    model: GeneralisedLinear | LinearPredictor
    shift: Float[Array, ""]
    scale: Float[Array, ""]
    encoder: Uncompared[Encoder | None] = eqx.field(static=True)
    names: Uncompared[tuple[str, tuple[str, ...] | None]] = eqx.field(static=True)
    """The name of the response, and those of its classes."""

    def __init__(
        self,
        model: AbstractModel,
        *,
        encoder: Encoder | None = None,
        classes: Sequence[str] | None = None,
        response_name: str = "y",
        shift: float = 0.0,
        scale: float = 1.0,
    ):
        inner = model.inner if isinstance(model, Hierarchical) else model
        if not isinstance(inner, (GeneralisedLinear, LinearPredictor)):
            raise InvalidInput("model", "be a regression", type(inner).__name__)
        self.model = inner
        self.shift, self.scale = (jnp.asarray(each, model.dtype) for each in (shift, scale))
        n_classes = _n_classes(inner)
        if classes is None and n_classes is not None:
            classes = tuple(map(str, range(n_classes)))
        elif classes is not None and len(classes) != (n_classes or 2):
            raise InvalidInput("classes", f"have {n_classes or 2} names", len(classes))
        named = None if classes is None else tuple(map(str, classes))
        self.encoder, self.names = Uncompared(encoder), Uncompared((response_name, named))

    @property
    def response_name(self) -> str:
        return self.names.value[0]

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.names.value[1]

    def encode(
        self,
        new_rows: Any,
        *,
        response: bool = False,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> RegressionRows:
        options: dict[str, Any] = {"response": response, "offset": offset, "trials": trials}
        encoder = self.encoder.value
        if encoder is None or isinstance(new_rows, (Observations, GroupedObservations)):
            return self._encode_design(new_rows, options)
        return encoder(new_rows, **options)

    def observed(self, rows: RegressionRows) -> Float[Array, " n"]:
        return self._in_units(rows.y, rows)

    def mean(self, position: Float[Array, " d"], rows: RegressionRows) -> Float[Array, "n ..."]:
        z = self.model.predictors(position[: self.model.dim], rows)
        if isinstance(self.model, GeneralisedLinear):
            return self._in_units(self.model.family.mean(z), rows)
        return self._in_units(self.model.likelihood.mean(z), rows)

    def simulate(
        self, key: PRNGKeyArray, position: Float[Array, " d"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        z = self.model.predictors(position[: self.model.dim], rows)
        if isinstance(self.model, GeneralisedLinear):
            return self._in_units(self.model.family.simulate(key, z, rows), rows)
        return self._in_units(self.model.likelihood.simulate(key, z), rows)

    def log_likelihood(
        self, position: Float[Array, " d"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        potentials = self.model.row_potentials(position[: self.model.dim], rows)
        if isinstance(self.model, GeneralisedLinear):
            constants = self.model.family.constant(rows)
        else:
            constants = weighted(rows, self.model.likelihood.constant(rows.y))
        jacobian = weighted(rows, jnp.broadcast_to(jnp.log(self.scale), rows.y.shape))
        return -(potentials + constants + jacobian)

    @property
    def _family(self) -> AbstractFamily | None:
        return self.model.family if isinstance(self.model, GeneralisedLinear) else None

    def _in_units(self, response: Float[Array, "n ..."], rows: RegressionRows) -> Array:
        """Responses of the model in the units of the user: counts, not shares, of successes."""
        if isinstance(self._family, Binomial) and rows.weight is not None:
            return response * rows.weight
        return self.shift + self.scale * response

    def _encode_design(self, new_rows: Any, options: dict[str, Any]) -> RegressionRows:
        """Rows from a design matrix; the responses are then in the units of the user."""
        is_binomial = isinstance(self._family, Binomial)
        if options["trials"] is not None and not is_binomial:
            raise InvalidInput("trials", "be left out, except for a binomial response", "numbers")
        n_columns, names = _columns(self.model)
        rows = regression_rows(new_rows, n_columns, names, self.model.dtype, **options)
        if rows is new_rows:
            return rows
        assert isinstance(rows, Observations), "a design matrix has no group terms"
        if options["response"]:
            self._check_response(rows)
        if is_binomial:
            return rows if rows.weight is None else rows._replace(y=rows.y / rows.weight)
        return rows._replace(y=(rows.y - self.shift) / self.scale)

    def _check_response(self, rows: Observations) -> None:
        """Raise unless the responses, in the units of the user, are possible."""
        y, family = np.asarray(rows.y), self._family
        highest = np.full(y.shape, np.inf)
        if isinstance(family, (Bernoulli, BernoulliProbit)):
            rule, highest = "be 0 or 1 in every row", np.ones(y.shape)
        elif isinstance(family, Binomial):
            rule = "be a count from 0 to the number of trials in every row"
            highest = np.ones(y.shape) if rows.weight is None else np.asarray(rows.weight)
        elif isinstance(family, Poisson):
            rule = "be a count (0, 1, 2, …) in every row"
        elif self.classes is not None:
            rule = f"be a class (0 to {len(self.classes) - 1}) in every row"
            highest = np.full(y.shape, len(self.classes) - 1)
        else:
            return
        bad = (y < 0) | (y > highest) | (y % 1 != 0)
        if bad.any():
            raise InvalidInput("y", rule, f"{y[np.argmax(bad)]:g} in row {np.argmax(bad)}")


def predictive_of(model: AbstractModel) -> AbstractPredictive | None:
    """The law of the response of a regression; None for another model."""
    inner = model.inner if isinstance(model, Hierarchical) else model
    is_regression = isinstance(inner, (GeneralisedLinear, LinearPredictor))
    return RegressionPredictive(model) if is_regression else None


def _n_classes(model: GeneralisedLinear | LinearPredictor) -> int | None:
    """The number of classes; None if the response is a number."""
    if isinstance(model, GeneralisedLinear):
        return None
    likelihood = model.likelihood
    z = jax.ShapeDtypeStruct((1, likelihood.n_predictors + likelihood.n_shared), model.dtype)
    shape = jax.eval_shape(likelihood.mean, z).shape
    return shape[1] if len(shape) == 2 else None


def _columns(
    model: GeneralisedLinear | LinearPredictor,
) -> tuple[int, tuple[str, ...] | None]:
    """The number of columns of the design matrix, and their names if all are known."""
    if isinstance(model, GeneralisedLinear):
        count = model.dim
    else:
        count = (model.dim - model.likelihood.n_shared) // model.n_predictors
    names = model.layout.entries.get("beta")
    return count, names if names is not None and len(names) == count else None
