"""The rows of a regression: checks of design matrices, responses and prior variances."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from .._core.arrays import check_numeric, to_floats
from .._core.errors import InvalidInput
from .._rows.access import AbstractRows, PerRow
from .._rows.resident import ResidentRows
from .._rows.sharded import ShardedRows
from .priors import NormalPrior

# The rows of a regression: a row of the design matrix, a response, an offset and a weight.
#
#     z_i = x_iᵀβ + o_i,   f_i = w_i f(z_i; y_i)
#
# A weight counts a row w_i times. Most regressions have neither offsets nor weights.


class Observations(NamedTuple):
    """Rows of a regression whose design matrix is stored."""

    x: Float[Array, "n d"]
    y: PerRow
    offset: PerRow | None = None
    weight: PerRow | None = None


class GroupTerm(eqx.Module):
    """Columns whose coefficients differ between groups, as in (1 + x | group)."""

    codes: Int[Array, " n"]
    """The group of each row."""
    columns: Float[Array, "n r"]
    """The r columns, 1 for an intercept."""
    n_groups: int = eqx.field(static=True)

    @property
    def n_columns(self) -> int:
        """Columns of the design matrix."""
        return self.n_groups * self.columns.shape[-1]

    @property
    def x(self) -> Float[Array, "n groups_times_r"]:
        """The design matrix: the r columns of a row stand at the place of its group."""
        member = jax.nn.one_hot(self.codes, self.n_groups, dtype=self.columns.dtype)
        return (member[..., :, None] * self.columns[..., None, :]).reshape(*self.codes.shape, -1)


class GroupedObservations(eqx.Module):
    """Rows of a regression with group terms. The matrix of dummies is made where it is needed."""

    fixed: Float[Array, "n c"]
    y: PerRow
    offset: PerRow | None
    weight: PerRow | None
    terms: tuple[GroupTerm, ...]

    @property
    def x(self) -> Float[Array, "n d"]:
        """The design matrix: the common columns, then those of each group term."""
        return jnp.concatenate([self.fixed, *(term.x for term in self.terms)], axis=-1)


RegressionRows = Observations | GroupedObservations


class ProductColumn(NamedTuple):
    """A column of a design: (Π_j (value_j · sd_j + mean_j) − shift)/scale."""

    columns: tuple[int, ...]
    """Numbers of columns of a row store; none for an intercept."""
    means: tuple[float, ...]
    sds: tuple[float, ...]
    shift: float
    scale: float

    @property
    def is_stored(self) -> bool:
        """Whether it is a column of the row store as it is."""
        return len(self.columns) == 1 and (self.shift, self.scale) == (self.means[0], self.sds[0])

    def of(self, lines: Any) -> Any:
        """The column of these lines of a row store."""
        if self.is_stored:
            return lines[..., self.columns[0]]
        product = lines[..., 0] * 0 + 1
        for column, mean, sd in zip(self.columns, self.means, self.sds, strict=True):
            product = product * (lines[..., column] * sd + mean)
        return (product - self.shift) / self.scale


@dataclasses.dataclass(frozen=True)
class ObservationsOf:
    """Shows lines of a row store as observations, with the response (value − shift)/scale."""

    features: tuple[Any, ...]
    """The columns of the design matrix, by number or as a `ProductColumn`."""
    response: int
    shift: float = 0.0
    scale: float = 1.0
    weight: int | None = None
    offset: int | None = None

    def __call__(self, lines: Any) -> Observations:
        y = lines[..., self.response]
        is_scaled = self.shift != 0 or self.scale != 1
        return Observations(
            self._columns(lines),
            (y - self.shift) / self.scale if is_scaled else y,
            None if self.offset is None else lines[..., self.offset] / self.scale,
            None if self.weight is None else lines[..., self.weight],
        )

    def _columns(self, lines: Any) -> Any:
        if isinstance(self.features[0], ProductColumn):
            stack = jnp.stack if isinstance(lines, jax.Array) else np.stack
            return stack([column.of(lines) for column in self.features], axis=-1)
        first, last = self.features[0], self.features[-1]
        side_by_side = self.features == tuple(range(first, last + 1))
        return lines[..., first : last + 1] if side_by_side else lines[..., list(self.features)]


def observations(
    rows: ShardedRows,
    response: str | None = None,
    *,
    without: Collection[str] = (),
    standardise: bool = False,
    weights: str | None = None,
    offset: str | None = None,
) -> ShardedRows:
    """Rows of a row store as a regression sees them; the response named at ingestion by default.

    All columns but the response, weights, offset and those `without` are covariates. `standardise`
    scales the response to mean 0 and sd 1.
    """
    manifest = rows.shards.manifest
    name, names = response or manifest.response, manifest.names
    named = {"weights": weights, "offset": offset}
    others = {role: column for role, column in named.items() if column is not None}
    roles = [("response", name), *(("without", each) for each in without), *others.items()]
    for role, wanted in roles:
        if wanted not in names:
            found = f"The columns are: {', '.join(names[:20])}."
            raise InvalidInput(role, "name a column of the row store", wanted, found)
    left_out = {name, *without, *others.values()}
    features = tuple(k for k, column in enumerate(names) if column not in left_out)
    if not features:
        raise InvalidInput("row store", "have a column besides the response", f"only {name}")
    column = manifest.columns[names.index(str(name))]
    scaling = (column.mean, column.sd) if standardise else (0.0, 1.0)
    numbers = [None if each is None else names.index(each) for each in (weights, offset)]
    return rows.viewed(ObservationsOf(features, names.index(str(name)), *scaling, *numbers))


class RegressionData(abc.ABC):
    """The rows of a regression, checked, with what is known about their responses."""

    rows: AbstractRows
    n_columns: int
    names: tuple[str, ...] | None
    """Names of the columns, if they are known."""
    dtype: Any
    y_high: float
    """The largest response."""
    y_sd: float
    """The standard deviation of the responses."""

    @abc.abstractmethod
    def check_response(self, rule: str, allowed: Callable[[np.ndarray], np.ndarray]) -> None:
        """Raise unless all responses are whole numbers for which `allowed` is true.

        `allowed` must be true for all whole numbers between two for which it is true.
        """

    @abc.abstractmethod
    def check_positive(self) -> None:
        """Raise unless all responses are positive."""

    @abc.abstractmethod
    def some(self, chosen: np.ndarray) -> Observations:
        """Some rows by number, in float64 on the host; of group terms, the common columns only."""


class _InMemory(RegressionData):
    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        weights: ArrayLike | None,
        offset: ArrayLike | None,
        groups: tuple[GroupTerm, ...] = (),
        names: Sequence[str] | None = None,
    ):
        found, matrix = named_columns(X)
        self.names = found if names is None else tuple(names)
        x, self.responses = check_design(matrix, y)
        per_row = (
            x,
            to_floats("y", self.responses, x.dtype),
            None if offset is None else check_per_row("offset", offset, x),
            None if weights is None else check_per_row("weights", weights, x, positive=True),
        )
        rows = GroupedObservations(*per_row, groups) if groups else Observations(*per_row)
        self.rows = ResidentRows(rows)
        self.n_columns = x.shape[1] + sum(term.n_columns for term in groups)
        self.dtype = x.dtype
        self.y_high, self.y_sd = float(self.responses.max()), float(np.std(self.responses))

    def some(self, chosen: np.ndarray) -> Observations:
        rows = self.rows.take(jnp.asarray(chosen))
        x = rows.fixed if isinstance(rows, GroupedObservations) else rows.x
        # The responses before they were rounded to the precision of x.
        return _on_host(Observations(x, self.responses[chosen], rows.offset, rows.weight))

    def check_response(self, rule: str, allowed: Callable[[np.ndarray], np.ndarray]) -> None:
        self._check((self.responses != np.floor(self.responses)) | ~allowed(self.responses), rule)

    def check_positive(self) -> None:
        self._check(self.responses <= 0, "be positive in every row")

    def _check(self, bad: np.ndarray, rule: str) -> None:
        if bad.any():
            found = f"{self.responses[np.argmax(bad)]:g} in row {np.argmax(bad)}"
            raise InvalidInput("y", rule, found)


class _OfRowStore(RegressionData):
    def __init__(self, rows: ShardedRows, names: Sequence[str]):
        view, manifest = rows.view, rows.shards.manifest
        assert isinstance(view, ObservationsOf), "`observations` makes it"
        column = manifest.columns[view.response]
        self.rows, self.n_columns, self._column = rows, len(view.features), column
        self.names = tuple(names)
        self._view, self._lines = view, rows.lines
        self.dtype = jax.dtypes.canonicalize_dtype(manifest.dtype)
        self.y_high = (column.high - view.shift) / view.scale
        self.y_sd = column.sd / view.scale
        for name, number in (("weights", view.weight), ("offset", view.offset)):
            if number is None:
                continue
            stored = manifest.columns[number]
            if stored.standardised:
                rule = "be a column as it was in the table"
                cure = "Ingest the table without standardising it."
                raise InvalidInput(name, rule, "a standardised one", cure)
            if name == "weights" and stored.low <= 0:
                raise InvalidInput(name, "be positive", f"{stored.low:g}", "Drop rows of weight 0.")

    def some(self, chosen: np.ndarray) -> Observations:
        return _on_host(self._view(self._lines(chosen)))

    def check_response(self, rule: str, allowed: Callable[[np.ndarray], np.ndarray]) -> None:
        extremes = np.array([self._column.low, self._column.high])
        if not (self._column.whole and allowed(extremes).all()):
            kind = "whole numbers" if self._column.whole else "numbers"
            found = f"{kind} from {extremes[0]:g} to {extremes[1]:g}"
            raise InvalidInput(f"response {self._column.name!r}", rule, found)

    def check_positive(self) -> None:
        if self._column.low <= 0:
            name = f"response {self._column.name!r}"
            raise InvalidInput(name, "be positive in every row", f"{self._column.low:g}")


def _on_host(block: Observations) -> Observations:
    return jax.tree.map(lambda column: np.asarray(column, np.float64), block)


def regression_data(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None,
    response: str | None,
    weights: Any = None,
    offset: Any = None,
) -> RegressionData:
    """The rows of a regression; weights and offsets are arrays, or columns of the row store."""
    if isinstance(X, ShardedRows):
        if y is not None:
            cure = "Name the column of the response: response=..."
            raise InvalidInput("y", "be left out with rows of a row store", "an array", cure)
        for name, given in (("weights", weights), ("offset", offset)):
            if given is not None and not isinstance(given, str):
                raise InvalidInput(name, "name a column of the row store", type(given).__name__)
        if response is not None or not isinstance(X.view, ObservationsOf):
            X = observations(X, response, weights=weights, offset=offset)
        elif weights is not None or offset is not None:
            rule = "be named together with `response`, or where the rows were made observations"
            raise InvalidInput("weights and offset", rule, weights or offset)
        assert isinstance(X.view, ObservationsOf)
        return store_data(X, [X.shards.manifest.names[k] for k in X.view.features])
    if y is None or response is not None:
        raise InvalidInput("y", "be given, and `response` left out, if X is an array", response)
    for name, given in (("weights", weights), ("offset", offset)):
        if isinstance(given, str):
            raise InvalidInput(name, "be numbers, one per row, if X is an array", given)
    return _InMemory(X, y, weights, offset)


def design_data(
    x: np.ndarray,
    y: np.ndarray,
    names: Sequence[str],
    weights: np.ndarray | None = None,
    offset: np.ndarray | None = None,
    groups: tuple[GroupTerm, ...] = (),
) -> RegressionData:
    """The rows of a regression whose design matrix a front end has made."""
    return _InMemory(x, y, weights, offset, groups, names)


def store_data(rows: ShardedRows, names: Sequence[str]) -> RegressionData:
    """The rows of a regression from a row store, viewed as observations."""
    return _OfRowStore(rows, names)


def named_columns(X: Any) -> tuple[tuple[str, ...] | None, Any]:
    """The names of the columns of a data frame and its matrix; None and X for an array."""
    if isinstance(X, (np.ndarray, jax.Array, list, tuple)):
        return None, X
    if hasattr(X, "tocsr") and hasattr(X, "toarray"):
        cure = "Pass X.toarray() if it fits in memory."
        raise InvalidInput("X", "be a dense matrix", "a sparse matrix", cure)
    columns, to_numpy = getattr(X, "columns", None), getattr(X, "to_numpy", None)
    if columns is None or to_numpy is None:
        return None, X
    return tuple(map(str, columns)), to_numpy()


def check_per_row(
    name: str, values: ArrayLike, x: Float[Array, "n d"], *, positive: bool = False
) -> PerRow:
    """One finite number per row of x; positive, if asked."""
    found = np.asarray(check_numeric(name, values), np.float64)
    if found.shape != x.shape[:1]:
        raise InvalidInput(name, f"have one value per row ({x.shape[0]})", f"shape {found.shape}")
    bad = ~np.isfinite(found) | ((found <= 0) if positive else False)
    if bad.any():
        rule = "be positive and finite" if positive else "be finite"
        cure = "Drop rows of weight 0." if positive else ""
        raise InvalidInput(name, rule, f"{found[np.argmax(bad)]:g} in row {np.argmax(bad)}", cure)
    return to_floats(name, found, x.dtype)


def normal_prior(
    prior_variance: ArrayLike | None, data: RegressionData, n_predictors: int = 1
) -> NormalPrior:
    """Independent normal priors of the coefficients, from a variance or one per column."""
    if prior_variance is None:
        raise InvalidInput("prior_variance", "be given", None)
    variance = to_floats("prior_variance", prior_variance, data.dtype)
    positive = bool(jnp.all((variance > 0) & jnp.isfinite(variance)))
    if variance.shape not in ((), (data.n_columns,)) or not positive:
        rule = f"be positive and finite, a number or one per column ({data.n_columns})"
        raise InvalidInput("prior_variance", rule, prior_variance)
    return NormalPrior(variance if variance.ndim == 0 else jnp.repeat(variance, n_predictors))


def check_design(X: ArrayLike, y: ArrayLike) -> tuple[Float[Array, "n d"], Float[np.ndarray, " n"]]:
    """X on the device and y on the host; raises unless their shapes fit and all are finite."""
    x, responses = to_floats("X", X), np.asarray(check_numeric("y", y), np.float64)
    if x.ndim != 2 or 0 in x.shape:
        rule = "be a matrix with at least one row and one column"
        raise InvalidInput("X", rule, f"shape {x.shape}")
    if responses.shape != x.shape[:1]:
        rule = f"have one value per row of X ({x.shape[0]})"
        raise InvalidInput("y", rule, f"shape {responses.shape}")
    finite = np.asarray(jnp.all(jnp.isfinite(x), axis=1)) & np.isfinite(responses)
    if not finite.all():
        found = f"NaN or infinity in row {np.argmin(finite)}"
        raise InvalidInput("X and y", "be finite", found, "Drop or impute such rows.")
    return x, responses
