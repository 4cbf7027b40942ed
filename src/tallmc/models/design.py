"""The rows of a regression: checks of design matrices, responses and prior variances."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..core.arrays import check_numeric, to_floats
from ..core.errors import InvalidInput
from ..rows.base import AbstractRows
from ..rows.resident import ResidentRows
from ..rows.sharded import ShardedRows


class Observations(NamedTuple):
    """Rows of a regression: rows of the design matrix, and responses."""

    x: Float[Array, "n d"]
    y: Float[Array, " n"]


@dataclasses.dataclass(frozen=True)
class ObservationsOf:
    """Shows lines of a row store as observations.

    **Arguments:**

    - `features`: the columns of the design matrix, by number.
    - `response`: the column of the response.
    - `shift`, `scale`: the response is (value − shift)/scale.
    """

    features: tuple[int, ...]
    response: int
    shift: float = 0.0
    scale: float = 1.0

    def __call__(self, lines: Any) -> Observations:
        first, last = self.features[0], self.features[-1]
        side_by_side = self.features == tuple(range(first, last + 1))
        x = lines[..., first : last + 1] if side_by_side else lines[..., list(self.features)]
        y = lines[..., self.response]
        is_scaled = self.shift != 0 or self.scale != 1
        return Observations(x, (y - self.shift) / self.scale if is_scaled else y)


def observations(
    rows: ShardedRows,
    response: str | None = None,
    *,
    without: Collection[str] = (),
    standardise: bool = False,
) -> ShardedRows:
    """Rows of a row store as a regression sees them.

    **Arguments:**

    - `rows`: the rows.
    - `response`: the name of the response. By default the one named at ingestion.
    - `without`: columns to leave out. All others are covariates.
    - `standardise`: whether the response is scaled to mean 0 and sd 1.

    **Returns:** the same rows as pairs of covariates and a response.

    **Raises:** `InvalidInput` if there is no such column, or no covariate is left.
    """
    manifest = rows.shards.manifest
    name, names = response or manifest.response, manifest.names
    for wanted in (name, *without):
        if wanted not in names:
            found = f"The columns are: {', '.join(names[:20])}."
            raise InvalidInput("response", "name a column of the row store", wanted, found)
    left_out = {name, *without}
    features = tuple(k for k, column in enumerate(names) if column not in left_out)
    if not features:
        raise InvalidInput("row store", "have a column besides the response", f"only {name}")
    column = manifest.columns[names.index(str(name))]
    scaling = (column.mean, column.sd) if standardise else (0.0, 1.0)
    return rows.viewed(ObservationsOf(features, names.index(str(name)), *scaling))


class RegressionData(abc.ABC):
    """The rows of a regression, checked, with what is known about their responses."""

    rows: AbstractRows
    n_columns: int
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
    def some(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x and y of some rows by number, in float64 on the host."""


class _InMemory(RegressionData):
    def __init__(self, X: ArrayLike, y: ArrayLike):
        x, self.responses = check_design(X, y)
        self.rows = ResidentRows(Observations(x, to_floats("y", self.responses, x.dtype)))
        self.n_columns, self.dtype = x.shape[1], x.dtype
        self.y_high, self.y_sd = float(self.responses.max()), float(np.std(self.responses))

    def some(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = self.rows.take(jnp.asarray(chosen)).x
        return np.asarray(x, np.float64), self.responses[chosen]

    def check_response(self, rule: str, allowed: Callable[[np.ndarray], np.ndarray]) -> None:
        bad = (self.responses != np.floor(self.responses)) | ~allowed(self.responses)
        if bad.any():
            found = f"{self.responses[np.argmax(bad)]:g} in row {np.argmax(bad)}"
            raise InvalidInput("y", rule, found)


class _OfRowStore(RegressionData):
    def __init__(self, rows: ShardedRows):
        view, manifest = rows.view, rows.shards.manifest
        assert isinstance(view, ObservationsOf), "`observations` makes it"
        column = manifest.columns[view.response]
        self.rows, self.n_columns, self._column = rows, len(view.features), column
        self._view, self._lines = view, rows.lines
        self.dtype = jax.dtypes.canonicalize_dtype(manifest.dtype)
        self.y_high = (column.high - view.shift) / view.scale
        self.y_sd = column.sd / view.scale

    def some(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, y = (np.asarray(part, np.float64) for part in self._view(self._lines(chosen)))
        return x, y

    def check_response(self, rule: str, allowed: Callable[[np.ndarray], np.ndarray]) -> None:
        extremes = np.array([self._column.low, self._column.high])
        if not (self._column.whole and allowed(extremes).all()):
            kind = "whole numbers" if self._column.whole else "numbers"
            found = f"{kind} from {extremes[0]:g} to {extremes[1]:g}"
            raise InvalidInput(f"response {self._column.name!r}", rule, found)


def regression_data(
    X: ArrayLike | ShardedRows, y: ArrayLike | None, response: str | None
) -> RegressionData:
    """The rows of a regression, from arrays or from a row store."""
    if isinstance(X, ShardedRows):
        if y is not None:
            cure = "Name the column of the response: response=..."
            raise InvalidInput("y", "be left out with rows of a row store", "an array", cure)
        is_designed = response is None and isinstance(X.view, ObservationsOf)
        return _OfRowStore(X if is_designed else observations(X, response))
    if y is None or response is not None:
        raise InvalidInput("y", "be given, and `response` left out, if X is an array", response)
    return _InMemory(X, y)


def check_design(X: ArrayLike, y: ArrayLike) -> tuple[Float[Array, "n d"], Float[np.ndarray, " n"]]:
    """X on the device and y on the host; raises unless their shapes fit and all are finite."""
    x, responses = to_floats("X", X), np.asarray(check_numeric("y", y), np.float64)
    if x.ndim != 2 or 0 in x.shape:
        rule = "be a matrix with at least one row and one column"
        raise InvalidInput("X", rule, f"shape {x.shape}")
    if responses.shape != x.shape[:1]:
        raise InvalidInput(
            "y", f"have one value per row of X ({x.shape[0]})", f"shape {responses.shape}"
        )
    finite = np.asarray(jnp.all(jnp.isfinite(x), axis=1)) & np.isfinite(responses)
    if not finite.all():
        found = f"NaN or infinity in row {np.argmin(finite)}"
        raise InvalidInput("X and y", "be finite", found, "Drop or impute such rows.")
    return x, responses


def check_prior_variance(prior_variance: ArrayLike | None, d: int, dtype: Any) -> Float[Array, ...]:
    """Prior variances on the device: one number, or one per column."""
    if prior_variance is None:
        raise InvalidInput("prior_variance", "be given", None)
    variance = to_floats("prior_variance", prior_variance, dtype)
    positive = bool(jnp.all((variance > 0) & jnp.isfinite(variance)))
    if variance.shape not in ((), (d,)) or not positive:
        rule = f"be positive and finite, a number or one per column ({d})"
        raise InvalidInput("prior_variance", rule, prior_variance)
    return variance
