"""The law of the response of new rows, given a position.

    E(y | θ, x),   y ~ p(· | θ, x),   log p(y | θ, x) with all constants

A *predictive* turns rows of the user into rows of the model (`encode`), and computes these three as
pure functions of a position. Responses are in the units of the user: if the model sees
y' = (y − shift)/scale, then E y = shift + scale E y' and log p(y) = log p(y') − log scale.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from .._core.arrays import Scalar, Vector, check_numeric, on_device, to_floats
from .._core.errors import InvalidInput
from .._core.programs import Uncompared
from .._rows.access import PerRow, RowBlock
from .._rows.sharded import ShardedRows
from .._rows.shards import View
from .design import GroupedObservations, Observations, RegressionRows, check_per_row, named_columns
from .generalised_linear import AbstractRegression, weighted
from .groups import with_new_groups
from .likelihood import WHOLE, ResponseKind
from .model import AbstractModel, DensityModel
from .smooths import SmoothEffect
from .transforms import Constraints


def response_rule(
    kind: ResponseKind, n_classes: int
) -> tuple[str, Callable[[np.ndarray], np.ndarray]]:
    """What responses of this kind must be, in words and as a function."""
    match kind:
        case "binary":
            return "be 0 or 1 in every row", lambda y: (y == 0) | (y == 1)
        case "count":
            return "be a count (0, 1, 2, …) in every row", lambda y: y >= 0
        case "classes" | "ordered":
            rule = f"be a class (0 to {n_classes - 1}) in every row"
            return rule, lambda y: (y >= 0) & (y < n_classes)
        case "positive":
            return "be positive in every row", lambda y: y > 0
        case "nonnegative":
            return "be zero or positive in every row", lambda y: y >= 0
        case "share":
            return (
                "lie between 0 and 1, without the ends, in every row",
                lambda y: (y > 0) & (y < 1),
            )
        case "times":
            return "come with its censoring, in a table", lambda y: np.zeros(len(y), bool)
    return "be a number in every row", np.isfinite


# New rows from users: checked, and in the form that a model reads.


def _design(
    matrix: Any, n_columns: int, names: Sequence[str] | None, dtype: Any
) -> Float[Array, "n d"]:
    """The columns of the model, by name if both sides have names."""
    found, values = named_columns(matrix)
    if found is not None and names is not None:
        missing = [name for name in names if name not in found]
        unknown = [name for name in found if name not in names]
        if missing or unknown:
            what = f"no column {missing[0]!r}" if missing else f"the column {unknown[0]!r}"
            cure = f"The columns are: {', '.join(names[:20])}{', …' if len(names) > 20 else ''}."
            raise InvalidInput("new rows", "have the columns of the fit, and no others", what, cure)
        values = values[:, [found.index(name) for name in names]]
    x = to_floats("new rows", values, dtype)
    if x.ndim != 2 or not x.shape[0]:
        raise InvalidInput("new rows", "be a matrix with at least one row", f"shape {x.shape}")
    _check_n_columns(x.shape[1], n_columns)
    finite = np.isfinite(np.asarray(x)).all(axis=1)
    if not finite.all():
        found_bad = f"NaN or infinity in row {np.argmin(finite)}"
        raise InvalidInput("new rows", "be finite", found_bad, "Drop or impute such rows.")
    return x


def _check_n_columns(found: int, wanted: int) -> None:
    if found != wanted:
        cure = "The design matrix has its own intercept column, as in the fit."
        raise InvalidInput("new rows", f"have {wanted} columns, as in the fit", found, cure)


def _refuse_new_groups() -> NoReturn:
    rule = "be 'raise' unless new rows are a table, and the fit has a term such as (1 | group)"
    raise InvalidInput("new_groups", rule, "draw", "Leave it out.")


def rows_like(row_shapes: PyTree[jax.ShapeDtypeStruct], rows: PyTree[ArrayLike]) -> RowBlock:
    """Rows as arrays in the structure of a posterior's data, whose rows have these shapes."""
    try:
        given = Observations(*rows) if isinstance(row_shapes, Observations) else rows
        columns = jax.tree.map(
            lambda like, column: jnp.asarray(check_numeric("rows", column), like.dtype),
            row_shapes,
            given,
        )
    except InvalidInput:
        raise
    except (TypeError, ValueError) as error:
        rule = "have the structure of the posterior's data"
        raise InvalidInput("rows", rule, str(error)) from None
    shapes, wanted = ([x.shape for x in jax.tree.leaves(tree)] for tree in (columns, row_shapes))
    lengths = {shape[:1] for shape in shapes}
    if [shape[1:] for shape in shapes] != wanted or len(lengths) != 1 or lengths <= {(), (0,)}:
        rule = f"be arrays of one length, whose rows have shapes {wanted}"
        raise InvalidInput("rows", rule, f"shapes {shapes}")
    return columns


Encoder = Callable[..., RegressionRows]
"""`encoder(new_rows, *, response, offset, trials)`, the rows of a model; `new_groups` if there are
group terms."""
Complete = Callable[[Any], tuple[Any, np.ndarray]]
"""`complete(new_rows)`, the table, and which of its rows have no missing value."""


class AbstractPredictive(eqx.Module):
    """The law of the response of new rows."""

    @property
    def response_name(self) -> str:
        """The name of the response."""
        return "y"

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes; None if the response is a number."""
        return None

    @property
    def whole(self) -> bool:
        """Whether responses are whole numbers."""
        return False

    @property
    def reads_tables(self) -> bool:
        """Whether new rows are tables, of which a row store is one."""
        return False

    def to_json(self) -> Mapping[str, Any]:
        """JSON from which `tallmc.load` makes this law again; empty if it cannot."""
        return {}

    def encode(
        self,
        new_rows: Any,
        *,
        response: bool = False,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
        new_groups: bool = False,
    ) -> RowBlock:
        """The rows of the model from rows of the user, which need responses if `response`.

        With `new_groups`, groups may be others than those of the fit.
        """
        if new_groups:
            _refuse_new_groups()
        if offset is not None or trials is not None:
            raise InvalidInput("offset and trials", "be left out: this model has none", "numbers")
        return self.encoded(new_rows, response)

    @abc.abstractmethod
    def encoded(self, new_rows: Any, response: bool) -> RowBlock:
        """The rows of the model from rows of the user, without offsets and trials."""

    def complete(self, new_rows: Any) -> tuple[Any, np.ndarray]:
        """Rows of the user, and which of them have no missing value."""
        rule = "be 'raise' unless the draws come from a table"
        raise InvalidInput("missing", rule, "nan", "Leave out rows with missing values.")

    def view_of(self, rows: ShardedRows) -> View | None:
        """What turns lines of a row store into rows of the model; None if it is not known."""
        return None

    def observed(self, block: RowBlock) -> PerRow | None:
        """The responses of rows in the units of the user; NaN without one, None if unknown."""
        return None

    @abc.abstractmethod
    def mean(self, position: Vector, block: RowBlock) -> Float[Array, "n ..."]:
        """E y per row; for several classes, the probability of each class."""

    def median(self, position: Vector, block: RowBlock) -> PerRow:
        """The median of y per row, for survival times."""
        rule = 'be "mean" or "response" unless the response is a survival time'
        raise InvalidInput("kind", rule, "median")

    def survival(
        self, position: Vector, block: RowBlock, times: Float[Array, " t"]
    ) -> Float[Array, "n t"]:
        """P(y > t) per row and time, for survival times."""
        cure = "Fit a family such as weibull to surv(time, event)."
        raise InvalidInput("draws", "be those of survival times", "another response", cure)

    @abc.abstractmethod
    def simulate(self, key: PRNGKeyArray, position: Vector, block: RowBlock) -> PerRow:
        """A draw of y per row; for classes, the number of the class."""

    @abc.abstractmethod
    def log_likelihood(self, position: Vector, block: RowBlock) -> PerRow:
        """Log p(y | θ, x) per row, times the weight of the row."""

    def constants(self, block: RowBlock) -> PerRow:
        """What the model's potentials −log p(y | θ, x) leave out, per row."""
        return jnp.zeros(jax.tree.leaves(block)[0].shape[0])


def split_response(new_rows: Any, response: bool, rule: str) -> tuple[Any, Any]:
    """Rows and responses from a pair; None for responses that are neither given nor needed."""
    if isinstance(new_rows, tuple) and len(new_rows) == 2:
        return new_rows
    if response:
        raise InvalidInput("new rows", rule, type(new_rows).__name__)
    return new_rows, None


class RegressionPredictive(AbstractPredictive):
    """The law of the response of a regression, whose model sees (y − shift)/scale.

    Without an `encoder`, new rows are a design matrix, or a data frame with the columns of the fit.

    >>> import tallmc
    >>> posterior = tallmc.models.logistic_regression([[1.0], [2.0]], [0, 1], prior_variance=10.0)
    >>> predictive = RegressionPredictive(posterior.model)
    >>> predictive.mean(jnp.array([0.5]), predictive.encode([[0.0], [2.0]])).round(3)
    Array([0.5  , 0.731], dtype=float32)
    """

    model: AbstractRegression
    shift: Scalar
    scale: Scalar
    encoder: Uncompared[Encoder | None] = eqx.field(static=True)
    names: Uncompared[tuple[str, tuple[str, ...] | None]] = eqx.field(static=True)
    """The name of the response, and those of its classes."""
    saved: Uncompared[Callable[[], Mapping[str, Any]]] = eqx.field(static=True)
    of_table: Uncompared[Complete | None] = eqx.field(static=True)
    of_store: Uncompared[Callable[[ShardedRows], View] | None] = eqx.field(static=True)
    smooths: Uncompared[tuple[SmoothEffect, ...]] = eqx.field(static=True)
    group_sds: tuple[int, ...] = eqx.field(static=True)
    """Where the log sds of each group term begin in a position."""

    def __init__(
        self,
        model: AbstractModel,
        *,
        encoder: Encoder | None = None,
        classes: Sequence[str] | None = None,
        response_name: str = "y",
        shift: float = 0.0,
        scale: float = 1.0,
        saved: Callable[[], Mapping[str, Any]] = dict,
        complete: Complete | None = None,
        view: Callable[[ShardedRows], View] | None = None,
        smooths: tuple[SmoothEffect, ...] = (),
        group_sds: tuple[int, ...] = (),
    ):
        inner = model.regression()
        if inner is None:
            raise InvalidInput("model", "be a regression", type(model).__name__)
        self.model = inner
        self.shift, self.scale = (on_device(each, model.dtype) for each in (shift, scale))
        likelihood = inner.likelihood
        n_compact = likelihood.n_predictors + likelihood.n_shared
        shape = (1,) if likelihood.elementwise else (1, n_compact)
        mean = jax.eval_shape(likelihood.mean, jax.ShapeDtypeStruct(shape, inner.dtype)).shape
        n_classes = mean[1] if len(mean) == 2 else None
        if classes is None and n_classes is not None:
            classes = tuple(map(str, range(n_classes)))
        elif classes is not None and len(classes) != (n_classes or 2):
            raise InvalidInput("classes", f"have {n_classes or 2} names", len(classes))
        named = None if classes is None else tuple(map(str, classes))
        self.encoder, self.names = Uncompared(encoder), Uncompared((response_name, named))
        self.saved, self.of_table = Uncompared(saved), Uncompared(complete)
        self.of_store = Uncompared(view)
        self.smooths, self.group_sds = Uncompared(smooths), group_sds

    @property
    def whole(self) -> bool:
        return self.model.likelihood.response in WHOLE

    @property
    def reads_tables(self) -> bool:
        return self.encoder.value is not None

    def to_json(self) -> Mapping[str, Any]:
        return self.saved.value()

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
        new_groups: bool = False,
    ) -> RegressionRows:
        """The rows of the model from a matrix, a data frame, or a pair of these and responses.

        Rows of a posterior (`posterior.data`) stay as they are. Without responses, y is NaN.
        """
        encoder, likelihood = self.encoder.value, self.model.likelihood
        is_encoded = isinstance(new_rows, (Observations, GroupedObservations))
        if new_groups and (not self.group_sds or encoder is None or is_encoded):
            _refuse_new_groups()
        if encoder is not None and not is_encoded:
            options = {"new_groups": True} if new_groups else {}
            return encoder(new_rows, response=response, offset=offset, trials=trials, **options)
        if trials is not None and not likelihood.has_trials:
            raise InvalidInput("trials", "be left out, except for a binomial response", "numbers")
        n_columns, names = self.model.n_columns, self.model.layout.entries.get("beta")
        if is_encoded:
            if offset is not None or trials is not None:
                rule = "be left out with rows of a posterior"
                raise InvalidInput("offset and trials", rule, "both")
            _check_n_columns(self.model.columns(new_rows).shape[1], n_columns)
            return new_rows
        if isinstance(new_rows, ShardedRows):
            cure = "Pass some of them: rows.view(rows.lines(numbers))."
            raise InvalidInput("new rows", "be in memory", "rows of a row store", cure)
        matrix, y = split_response(new_rows, response, "be a pair (X, y) of columns and responses")
        named = names if names is not None and len(names) == n_columns else None
        x = _design(matrix, n_columns, named, self.model.dtype)
        rows = Observations(
            x,
            jnp.full(x.shape[0], jnp.nan, x.dtype) if y is None else check_per_row("y", y, x),
            None if offset is None else check_per_row("offset", offset, x),
            None if trials is None else check_per_row("trials", trials, x, positive=True),
        )
        if response:
            self._check_response(rows)
        # The responses of a design matrix are in the units of the user.
        if likelihood.has_trials:
            return rows if rows.weight is None else rows._replace(y=rows.y / rows.weight)
        shift, scale = np.asarray(self.shift), np.asarray(self.scale)
        return rows._replace(y=on_device((np.asarray(rows.y) - shift) / scale, x.dtype))

    def encoded(self, new_rows: Any, response: bool) -> RegressionRows:
        return self.encode(new_rows, response=response)

    def complete(self, new_rows: Any) -> tuple[Any, np.ndarray]:
        of_table = self.of_table.value
        return super().complete(new_rows) if of_table is None else of_table(new_rows)

    def view_of(self, rows: ShardedRows) -> View | None:
        of_store = self.of_store.value
        return None if of_store is None else of_store(rows)

    def observed(self, block: RegressionRows) -> PerRow | None:
        comparable = self.model.likelihood.comparable
        return self._in_units(block.y, block) if comparable else None

    def mean(self, position: Vector, block: RegressionRows) -> Float[Array, "n ..."]:
        return self._in_units(self.model.likelihood.mean(self._predictors(position, block)), block)

    def median(self, position: Vector, block: RegressionRows) -> PerRow:
        if not self._has_times:
            return super().median(position, block)
        return self.scale * self.model.likelihood.median(self._predictors(position, block))

    def survival(
        self, position: Vector, block: RegressionRows, times: Float[Array, " t"]
    ) -> Float[Array, "n t"]:
        if not self._has_times:
            return super().survival(position, block, times)
        log_times = jnp.log(times) - jnp.log(self.scale)
        return self.model.likelihood.survival(self._predictors(position, block), log_times)

    def simulate(self, key: PRNGKeyArray, position: Vector, block: RegressionRows) -> PerRow:
        z, likelihood = self._predictors(position, block), self.model.likelihood
        trials = block.weight if likelihood.has_trials else None
        return self._in_units(likelihood.simulate(key, z, trials), block)

    def log_likelihood(self, position: Vector, block: RegressionRows) -> PerRow:
        potentials = self.model.row_potentials(position[: self.model.dim], block)
        return -(potentials + self.constants(block))

    def constants(self, block: RegressionRows) -> PerRow:
        likelihood = self.model.likelihood
        if likelihood.has_trials:
            constants = likelihood.constant(block.y, block.weight)
        else:
            constants = weighted(block, likelihood.constant(block.y))
        jacobian = weighted(block, jnp.log(self.scale) * likelihood.is_density(block.y))
        return constants + jacobian

    @property
    def _has_times(self) -> bool:
        return self.model.likelihood.response == "times"

    def _predictors(self, position: Vector, block: RegressionRows) -> Float[Array, "n ..."]:
        if isinstance(block, GroupedObservations) and any(term.has_new for term in block.terms):
            block = with_new_groups(position, block, self.group_sds)
        return self.model.predictors(position[: self.model.dim], block)

    def _in_units(self, response: Float[Array, "n ..."], block: RegressionRows) -> Array:
        """Responses of the model in the units of the user: counts, not shares, of successes."""
        if self.model.likelihood.has_trials and block.weight is not None:
            return response * block.weight
        return self.shift + self.scale * response

    def _check_response(self, block: Observations) -> None:
        """Raise unless the responses, in the units of the user, are possible."""
        y, likelihood = np.asarray(block.y), self.model.likelihood
        rule, allowed = response_rule(likelihood.response, len(self.classes or ()))
        bad = ~allowed(y)
        if self.whole:
            bad |= y % 1 != 0
        if likelihood.has_trials:
            rule = "be a count from 0 to the number of trials in every row"
            bad |= y > (1 if block.weight is None else np.asarray(block.weight))
        if bad.any():
            raise InvalidInput("y", rule, f"{y[np.argmax(bad)]:g} in row {np.argmax(bad)}")


class AbstractDensityPredictive(AbstractPredictive):
    """The law of rows whose log-likelihood is a function of `constraints(params)`, or `params`."""

    model: eqx.AbstractVar[DensityModel]
    constraints: eqx.AbstractVar[Constraints | None]

    def log_likelihood(self, position: Vector, block: RowBlock) -> PerRow:
        return -self.model.row_potentials(position, block)

    def params(self, position: Vector) -> PyTree:
        """The parameters of the log-likelihood."""
        params = self.model.layout.unravel(position)
        return params if self.constraints is None else self.constraints(params)


class DensityPredictive(AbstractDensityPredictive):
    """The law of rows whose log-likelihood is a user's function."""

    model: DensityModel
    constraints: Constraints | None
    row_shapes: Uncompared[PyTree[jax.ShapeDtypeStruct]] = eqx.field(static=True)
    simulation: Callable[..., Any] | None
    expectation: Callable[..., Any] | None

    def encoded(self, new_rows: Any, response: bool) -> RowBlock:
        return rows_like(self.row_shapes.value, new_rows)

    def mean(self, position: Vector, block: RowBlock) -> Float[Array, "n ..."]:
        function = _known(self.expectation, "mean=function(params, row)")
        return jax.vmap(function, in_axes=(None, 0))(self.params(position), block)

    def simulate(self, key: PRNGKeyArray, position: Vector, block: RowBlock) -> PerRow:
        function = _known(self.simulation, "simulate=function(key, params, row)")
        keys = jax.random.split(key, jax.tree.leaves(block)[0].shape[0])
        return jax.vmap(function, in_axes=(0, None, 0))(keys, self.params(position), block)


def _known(function: Callable[..., Any] | None, argument: str) -> Callable[..., Any]:
    if function is None:
        cure = f"Pass Posterior(..., {argument})."
        raise InvalidInput("posterior", "know the law of its response", "a log-likelihood", cure)
    return function
