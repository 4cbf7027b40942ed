"""From tables to rows of numbers: which numbers a row has, and how a batch becomes a matrix.

A row is

    intercept, column of the table …, response

A column of numbers x is stored as (x − mean)/sd, computed in float64 and then rounded. A column of
text gives one number per level but one: 1 if the row has this level, otherwise 0, standardised like
the others. The level without a number is the most frequent one, because indicators that lack a
rare level are nearly collinear with the intercept. The response is stored as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..rows.manifest import Category, Column, RowManifest
from .errors import (
    INTERCEPT,
    TableError,
    check_features,
    check_names,
    check_varying,
    constant_response,
    some,
)
from .survey import ColumnSurvey, TableSurvey
from .values import TableBatch

_ROWS_AT_ONCE = 2**13
FALSE_AND_TRUE = [("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("0", "1")]
"""Pairs of words of which the second counts as 1, in lower case."""


def make_schema(
    survey: TableSurvey,
    response: str | None,
    *,
    standardise: bool,
    intercept: bool,
    dtype: str,
) -> RowManifest:
    """The manifest of the store that the table will become, without shards."""
    features = {name: found for name, found in survey.columns.items() if name != response}
    check_features(features, response, intercept=intercept)
    _check_size(survey, dtype, standardise=standardise, response=response)
    constant = {
        name: found.low
        for name, found in features.items()
        if found.kind != "text" and (found.low == found.high or not found.sd)
    }
    if standardise:
        check_varying(constant)
    _check_several_levels(features)
    columns = [Column(INTERCEPT, "", mean=1.0, sd=0.0, low=1, high=1, whole=True)]
    columns = columns if intercept else []
    for found in features.values():
        columns += _columns_of(found, survey.n_rows, standardise=standardise)
    if response is not None:
        columns.append(_response_column(survey.columns[response], survey.n_rows))
    check_names("the row store", [column.name for column in columns])
    categories = tuple(
        Category(name, _levels(found, name == response))
        for name, found in survey.columns.items()
        if found.kind == "text"
    )
    return RowManifest(dtype, tuple(columns), (), response, categories)


class RowEncoder:
    """Turns batches into rows, as a manifest says."""

    def __init__(self, manifest: RowManifest):
        self._columns, self._dtype = manifest.columns, manifest.dtype
        self._levels = {category.name: category.levels for category in manifest.categories}
        self._exact = np.empty(_ROWS_AT_ONCE)
        self._rounded = np.empty((len(self._columns), _ROWS_AT_ONCE), self._dtype)

    @property
    def as_text(self) -> frozenset[str]:
        """The columns of the table that hold text."""
        return frozenset(self._levels)

    def rows(self, batch: TableBatch) -> np.ndarray:
        """The rows of the batch."""
        made = np.empty((batch.n_rows, len(self._columns)), self._dtype)
        self.encode(batch, made)
        return made

    def encode(self, batch: TableBatch, rows: np.ndarray) -> None:
        """Write the first rows of the batch into `rows`, as many as it has lines."""
        columns = [(column, *self._numbers(column, batch)) for column in self._columns]
        for first in range(0, len(rows), _ROWS_AT_ONCE):  # small enough for the cache
            count = min(_ROWS_AT_ONCE, len(rows) - first)
            exact, rounded = self._exact[:count], self._rounded[:, :count]
            for line, (column, numbers, table) in zip(rounded, columns, strict=True):
                part = numbers[first : first + count]
                if table is not None:
                    line[:] = table[part]
                elif column.standardised:
                    np.subtract(part, column.mean, out=exact)
                    np.divide(exact, column.sd, out=exact)
                    line[:] = exact
                else:
                    line[:] = part
            if not np.isfinite(rounded).all():
                raise changed(batch.origin)
            rows[first : first + count] = rounded.T

    def _numbers(self, column: Column, batch: TableBatch) -> tuple[np.ndarray, np.ndarray | None]:
        """The numbers of a column; or codes, and a table of the numbers that they stand for."""
        if not column.source:
            return np.broadcast_to(np.float64(1.0), batch.n_rows), None
        values = batch.columns.get(column.source)
        if values is None or (values.kind == "text") != (column.source in self._levels):
            raise changed(batch.origin)
        if values.kind != "text":
            return values.numbers, None
        if not set(values.levels) <= set(self._levels[column.source]):
            raise changed(batch.origin)
        indicators = np.array([level == column.level for level in values.levels], np.float64)
        if column.standardised:
            indicators = (indicators - column.mean) / column.sd
        return values.numbers, np.append(indicators, np.nan)  # −1, a missing value, is last


def changed(origin: str) -> TableError:
    """The error about a table that is not the same in the second pass."""
    cure = "Delete the folder and start again."
    return TableError("TABLE", "stay the same while it is read", f"other rows in {origin}", cure)


def _levels(found: ColumnSurvey, is_response: bool) -> tuple[str, ...]:
    """The levels of a column of text; the first has no number of its own."""
    if is_response:
        return _false_and_true(found)
    first = max(sorted(found.levels), key=lambda level: found.levels[level])
    return (first, *sorted(level for level in found.levels if level != first))


def _columns_of(found: ColumnSurvey, n_rows: int, *, standardise: bool) -> Iterator[Column]:
    if found.kind != "text":
        yield Column(found.name, found.name, **_moments(found), standardised=standardise)
        return
    for level in _levels(found, is_response=False)[1:]:
        name = f"{found.name}={level}"
        moments = _indicator_moments(found.levels[level] / n_rows)
        yield Column(name, found.name, level, **moments, standardised=standardise)


def _response_column(found: ColumnSurvey, n_rows: int) -> Column:
    if found.kind != "text":
        if found.low == found.high:
            raise constant_response(found.name, f"{found.low:g}")
        return Column(found.name, found.name, **_moments(found))
    level = _false_and_true(found)[1]
    return Column(found.name, found.name, level, **_indicator_moments(found.levels[level] / n_rows))


def _moments(found: ColumnSurvey) -> dict[str, Any]:
    return {
        "mean": found.mean,
        "sd": found.sd,
        "low": found.low,
        "high": found.high,
        "whole": found.whole,
    }


def _indicator_moments(share: float) -> dict[str, Any]:
    sd = math.sqrt(share * (1 - share))
    return {"mean": share, "sd": sd, "low": 0.0, "high": 1.0, "whole": True}


def _false_and_true(found: ColumnSurvey) -> tuple[str, str]:
    """The two levels of a response, that which counts as 1 last."""
    if len(found.levels) == 1:
        raise constant_response(found.name, next(iter(found.levels)))
    by_meaning = {level.strip().lower(): level for level in found.levels}
    for low, high in FALSE_AND_TRUE:
        if len(found.levels) == 2 and {low, high} == by_meaning.keys():
            return by_meaning[low], by_meaning[high]
    shown = some(repr(level) for level in sorted(found.levels))
    last = max(found.levels)
    cure = (
        "Choose the value that counts as 1, e.g. with pandas: "
        f"table[{found.name!r}] = table[{found.name!r}] == {last!r}."
    )
    rule = "hold numbers, booleans, or text such as no and yes"
    raise TableError(f"response {found.name!r}", rule, shown, cure)


def _check_several_levels(features: Mapping[str, ColumnSurvey]) -> None:
    single = [
        f"{name} ({next(iter(found.levels))!r} in every row)"
        for name, found in features.items()
        if found.kind == "text" and len(found.levels) == 1
    ]
    if single:
        raise TableError("columns of text", "have several levels", some(single), "Drop them.")


def _check_size(
    survey: TableSurvey, dtype: str, *, standardise: bool, response: str | None
) -> None:
    """Check that values fit into `dtype`, and that their moments are finite."""
    most = float(np.finfo(dtype).max)
    large = []
    for name, found in survey.columns.items():
        stored_as_is = name == response or not standardise
        extreme = max(found.low, found.high, key=abs)
        fits = not stored_as_is or abs(extreme) <= most
        if found.kind != "text" and not (fits and math.isfinite(found.mean + found.sd)):
            large.append(f"{name} ({extreme:g})")
    if large:
        cure = "Divide them by a power of ten first."
        raise TableError("columns", f"have values that {dtype} can hold", some(large), cure)
