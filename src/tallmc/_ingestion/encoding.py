"""From tables to rows of numbers: which numbers a row has, and how a batch becomes a matrix.

A row is

    intercept, column of the table …, response

A column of numbers x is stored as (x − mean)/sd, computed in float64 and then rounded. A column of
text is one number, the place of the level: in the order of the category if it has one, otherwise
as sorted text, as for tables in memory. The response is stored as it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .._rows.manifest import Category, Column, RowManifest
from .errors import (
    INTERCEPT,
    TableError,
    check_any_rows,
    check_complete,
    check_meant_as_text,
    check_names,
    check_several_levels,
    check_varying,
    constant_response,
    first_not_a_number,
    other_columns,
    some,
)
from .values import MAX_LEVELS, MISSING_LEVEL, ColumnValues, Kind, TableBatch, missing, missing_name

# The first pass over a table: moments, extremes, levels, and all values that cannot be used.
#
# Means and sums of squares are merged batch by batch (Chan et al., 1983), in float64:
#
#     δ = m_b − m_a,   m = m_a + δ n_b/n,   S = S_a + S_b + δ² n_a n_b/n,   n = n_a + n_b

_DESCRIPTIONS = {"number": "numbers", "boolean": "booleans", "text": "text"}


class UnclearColumns(TableError):
    """Columns that are not numbers, booleans or text in all places, described by name."""

    def __init__(self, columns: Mapping[str, str]):
        rule = "be numbers, booleans or text, the same in all rows"
        cure = "Convert them, e.g. dates to numbers of days, or drop them."
        super().__init__("columns", rule, some(columns.values()), cure)
        self.columns = frozenset(columns)


@dataclasses.dataclass
class Unusable:
    """How many values of a column cannot be used, and where the first of them is."""

    count: int = 0
    first: str = ""

    def add(self, bad: np.ndarray, batch: TableBatch) -> None:
        if bad.any():
            self.first = self.first or batch.place(int(bad.argmax()))
            self.count += int(bad.sum())


class ColumnSurvey:
    """What is known of a column so far."""

    def __init__(self, name: str):
        self.name, self.origin = name, ""
        self.kind: Kind = "missing"
        self.count, self.mean, self._squares = 0, 0.0, 0.0
        self.low, self.high, self.whole = math.inf, -math.inf, True
        self.levels: Counter[str] = Counter()
        self.order: tuple[str, ...] = ()
        self.missing, self.infinite = Unusable(), Unusable()
        self.marked = 0  # missing numbers that get the mean
        self._wide = False

    @property
    def sd(self) -> float:
        """The standard deviation of the rows as a population."""
        return math.sqrt(self._squares / self.count) if self.count else 0.0

    def mark(self) -> None:
        """Count missing values: of text as a level, of numbers as their mean."""
        count = self.missing.count
        if not count or not (self.levels or self.count):  # only missing values cannot be used
            return
        self.missing = Unusable()
        if self.kind == "text":
            self.levels[MISSING_LEVEL] += count
        else:
            self.count, self.marked = self.count + count, count
            self.whole = self.whole and self.mean == round(self.mean)

    @property
    def problems(self) -> Iterator[str]:
        for kind, found in (("missing", self.missing), ("infinite", self.infinite)):
            if found.count:
                yield f"{self.name}: {found.count} {kind} (first in {found.first})"

    def clash(self, values: ColumnValues, origin: str) -> str | None:
        """Note the kind of further values. Returns what is wrong with it, if anything."""
        kind = values.kind
        if kind == "other":
            return f"{self.name} ({values.described} in {origin})"
        if not len(values) or kind in ("missing", self.kind):
            return None
        if self.kind == "missing":
            self.kind, self.origin = kind, origin
            return None
        here, before = _DESCRIPTIONS[kind], _DESCRIPTIONS[self.kind]
        return f"{self.name} ({before} in {self.origin}, {here} in {origin})"

    def add(self, values: ColumnValues, batch: TableBatch, max_levels: int) -> None:
        if values.kind != "text":
            self._add_numbers(values.numbers, batch)
            return
        self.missing.add(values.numbers < 0, batch)
        self.order = self.order or values.order
        counts = np.bincount(values.numbers + 1, minlength=len(values.levels) + 1)[1:]
        known = self.levels
        for level, count in zip(values.levels, counts.tolist(), strict=True):
            if count:
                known[level] = known.get(level, 0) + count
        if len(self.levels) > max_levels:
            found = f"more, such as {first_not_a_number(self.levels)!r}"
            rule = f"have at most {max_levels} levels, as it holds text"
            cure = "Drop the column, turn it into numbers, join rare levels, "
            cure += "or raise --max-levels (max_levels)."
            raise TableError(f"column {self.name!r}", rule, found, cure)
        if not self._wide and len(self.levels) > MAX_LEVELS:
            self._wide = True
            check_meant_as_text(self.name, list(self.levels), "or drop the column.")

    def _add_numbers(self, values: np.ndarray, batch: TableBatch) -> None:
        numbers = values.astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(numbers.sum())
            if not math.isfinite(total):
                self.missing.add(np.isnan(numbers), batch)
                self.infinite.add(np.isinf(numbers), batch)
                numbers = numbers[np.isfinite(numbers)]
                total = float(numbers.sum())
            if not len(numbers):
                return
            new, mean = len(numbers), total / len(numbers)
            centred, change, count = numbers - mean, mean - self.mean, self.count + len(numbers)
            # The sum of squares of NumPy has the same bits on any number of cores; BLAS may not.
            self._squares += float(np.einsum("i,i->", centred, centred))
            self._squares += change * change * (self.count * new / count)
            self.mean += change * (new / count)
            self.count = count
        self.low = min(self.low, float(numbers.min()))
        self.high = max(self.high, float(numbers.max()))
        if self.whole and values.dtype.kind == "f":
            self.whole = bool((np.rint(numbers) == numbers).all())


_CURE = (
    'Drop rows with missing values with --missing drop (missing="drop"), mark them with '
    '--missing indicator (missing="indicator"), or fill in the values.'
)


class TableSurvey(NamedTuple):
    """What the first pass over a table found."""

    n_rows: int
    columns: Mapping[str, ColumnSurvey]


def survey_table(
    batches: Iterator[TableBatch],
    response: str | None,
    max_levels: int,
    name: str,
    *,
    mark: bool = False,
) -> TableSurvey:
    """Survey all batches. Raises `UnclearColumns` if a column is not of one kind.

    With `mark`, missing values of covariates get a level or a column of their own.
    """
    columns: dict[str, ColumnSurvey] = {}
    n_rows, first = 0, ""
    for batch in batches:
        if not columns:
            columns = {column: ColumnSurvey(column) for column in batch.columns}
            first = batch.origin
            if response is not None and response not in columns:
                cure = f"The columns are: {some(columns)}."
                raise TableError("--response", f"name a column of {first}", response, cure)
        if batch.columns.keys() != columns.keys():
            lacking = sorted(columns.keys() - batch.columns.keys())
            further = sorted(batch.columns.keys() - columns.keys())
            raise other_columns(lacking, further, batch.origin, first)
        clashes = {
            column: problem
            for column, survey in columns.items()
            if (problem := survey.clash(batch.columns[column], batch.origin)) is not None
        }
        if clashes:
            raise UnclearColumns(clashes)
        for column, survey in columns.items():
            survey.add(batch.columns[column], batch, max_levels)
        n_rows += len(batch)
    check_any_rows(n_rows, name)
    for column, survey in columns.items():
        if mark and column != response:
            survey.mark()
    problems = [problem for survey in columns.values() for problem in survey.problems]
    check_complete(problems, _CURE)
    return TableSurvey(n_rows, columns)


_ROWS_AT_ONCE = 2**13
_FALSE_AND_TRUE = [("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("0", "1")]
"""Pairs of words of which the second counts as 1, in lower case."""


def false_and_true(levels: Collection[str]) -> tuple[str, str] | None:
    """The two levels if they mean false and true, in this order; otherwise None."""
    by_meaning = {level.strip().lower(): level for level in levels}
    for low, high in _FALSE_AND_TRUE:
        if len(levels) == 2 and by_meaning.keys() == {low, high}:
            return by_meaning[low], by_meaning[high]
    return None


def make_schema(
    survey: TableSurvey, response: str | None, *, standardise: bool, intercept: bool, dtype: str
) -> RowManifest:
    """The manifest of the store that the table will become, without shards."""
    features = {name: found for name, found in survey.columns.items() if name != response}
    if intercept and INTERCEPT in features:
        rule = f"differ from {INTERCEPT!r}, the name of the column of ones"
        cure = "Drop it or pass --no-intercept (intercept=False)."
        raise TableError("column names", rule, INTERCEPT, cure)
    if not features and not intercept:
        rule = "have a column besides the response when there is no intercept"
        raise TableError("TABLE", rule, f"only {response}")
    stored_as_they_are = {response} if standardise else set(survey.columns)
    _check_size(survey, dtype, stored_as_they_are)
    constant = {
        name: found.low
        for name, found in features.items()
        if found.kind != "text" and (found.low == found.high or not found.sd)
    }
    if standardise:
        check_varying(constant, "Drop them")
    single = {
        name: next(iter(found.levels))
        for name, found in features.items()
        if found.kind == "text" and len(found.levels) == 1
    }
    check_several_levels(single, "Drop them.")
    columns = [Column(INTERCEPT, "", mean=1.0, sd=0.0, low=1, high=1, whole=True)]
    columns = columns if intercept else []
    for found in features.values():
        columns += _columns_of(found, survey.n_rows, standardise=standardise)
    if response is not None:
        columns.append(_response_column(survey.columns[response], survey.n_rows))
    check_names("the row store", [column.name for column in columns])
    categories = tuple(
        Category(name, levels, tuple(found.levels[level] / survey.n_rows for level in levels))
        for name, found in survey.columns.items()
        if found.kind == "text"
        for levels in [_levels(found, name == response)]
    )
    return RowManifest(dtype, tuple(columns), (), response, categories)


def grown_schema(manifest: RowManifest, survey: TableSurvey, name: str) -> RowManifest:
    """The manifest, without shards, of a store to which the rows of a table are added.

    Means, sds and levels stay, since the store holds rows that were scaled with them.
    """
    sources = {column.source for column in manifest.columns if column.source}
    marked = {missing_name(column) for column in survey.columns} - survey.columns.keys()
    if unknown := [
        column
        for column, found in survey.columns.items()
        if found.marked and missing_name(column) not in sources
    ]:
        rule, cure = "have missing values only where the row store marks them", "Drop these rows."
        raise TableError("columns", rule, some(unknown), cure)
    sources -= marked
    if sources != survey.columns.keys():
        lacking = sorted(sources - survey.columns.keys())
        further = sorted(survey.columns.keys() - sources)
        raise other_columns(lacking, further, name, "the row store")
    known = {category.name: set(category.levels) for category in manifest.categories}
    clashes = {
        source: f"{source} ({_DESCRIPTIONS[found.kind]} in {name})"
        for source, found in survey.columns.items()
        if (found.kind == "text") != (source in known)
    }
    if clashes:
        raise UnclearColumns(clashes)
    for source, levels in known.items():
        if unknown := sorted(survey.columns[source].levels.keys() - levels):
            rule = "have levels that the row store knows"
            cure = "Ingest the old and the new table together."
            raise TableError(f"column {source!r}", rule, some(map(repr, unknown)), cure)
    as_they_are = {column.source for column in manifest.columns if not column.standardised}
    _check_size(survey, manifest.dtype, as_they_are)

    def grown(column: Column) -> Column:
        found = survey.columns.get(column.source)
        if found is None or found.kind == "text":
            return column
        return dataclasses.replace(
            column,
            low=min(column.low, found.low),
            high=max(column.high, found.high),
            whole=column.whole and found.whole,
        )

    return dataclasses.replace(manifest, columns=tuple(map(grown, manifest.columns)), shards=())


class RowEncoder:
    """Turns batches into rows, as a manifest says."""

    def __init__(self, manifest: RowManifest):
        self._columns = manifest.columns
        self._codes = {
            category.name: {level: code for code, level in enumerate(category.levels)}
            for category in manifest.categories
        }
        self._tables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
        self._sources = {column.source for column in manifest.columns}
        self._dtype = manifest.dtype

    @property
    def as_text(self) -> frozenset[str]:
        return frozenset(self._codes)

    def pieces(self, parts: Iterable[tuple[TableBatch, int]]) -> Iterator[np.ndarray]:
        """The rows of each part, the first ones of a batch; the next part overwrites them."""
        room = np.empty((0, len(self._columns)), self._dtype)
        for batch, n_rows in parts:
            if len(room) < n_rows:
                room = np.empty((n_rows, len(self._columns)), self._dtype)
            self.encode(batch, room[:n_rows])
            yield room[:n_rows]

    def encode(self, batch: TableBatch, rows: np.ndarray) -> None:
        """Write the first rows of the batch into `rows`, as many as it has lines."""
        columns = [(column, *self._numbers(column, batch)) for column in self._columns]
        all_exact = np.empty(_ROWS_AT_ONCE)  # of this call: threads encode at the same time
        all_rounded = np.empty((len(columns), _ROWS_AT_ONCE), self._dtype)
        for first in range(0, len(rows), _ROWS_AT_ONCE):  # small enough for the cache
            count = min(_ROWS_AT_ONCE, len(rows) - first)
            exact, rounded = all_exact[:count], all_rounded[:, :count]
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
            return np.broadcast_to(np.float64(1.0), len(batch)), None
        values = batch.columns.get(column.source)
        if values is None:  # an indicator of missing numbers
            marked = batch.columns.get(column.source.removesuffix(missing_name("")))
            if marked is not None and marked.kind != "text":
                return missing(marked).astype(np.float64), None
        if values is None or (values.kind == "text") != (column.source in self._codes):
            raise changed(batch.origin)
        if values.kind != "text":
            is_marked = missing_name(column.source) in self._sources - batch.columns.keys()
            if is_marked and values.numbers.dtype.kind == "f":
                return np.where(np.isnan(values.numbers), column.mean, values.numbers), None
            return values.numbers, None
        return values.numbers, self._table(column, values.levels, batch.origin)

    def _table(self, column: Column, levels: tuple[str, ...], origin: str) -> np.ndarray:
        """What is stored of each code of a batch; that of a missing value, −1, is last."""
        known, found = self._tables.get(column.name, ((), None))
        if found is None or known is not levels:
            codes = self._codes[column.source]
            if not codes.keys() >= set(levels):
                raise changed(origin)
            found = np.array(
                [*(codes[level] for level in levels), codes.get(MISSING_LEVEL, np.nan)]
            )
            if column.level is not None:
                wanted = codes[column.level]
                found = np.where(np.isnan(found), np.nan, found == wanted)
                found = (found - column.mean) / column.sd if column.standardised else found
            self._tables[column.name] = levels, found
        return found


def changed(origin: str) -> TableError:
    """The error about a table that is not the same in the second pass."""
    cure = "Delete the folder and start again."
    return TableError("TABLE", "stay the same while it is read", f"other rows in {origin}", cure)


def _levels(found: ColumnSurvey, is_response: bool) -> tuple[str, ...]:
    """The levels of a column of text; the first is the baseline."""
    if is_response:
        return _false_and_true(found)
    ordered = [level for level in found.order if level in found.levels]
    others = sorted(set(found.levels) - set(ordered), key=lambda of: (of == MISSING_LEVEL, of))
    return (*ordered, *others)


def _columns_of(found: ColumnSurvey, n_rows: int, *, standardise: bool) -> Iterator[Column]:
    if found.kind != "text":
        yield Column(found.name, found.name, **_moments(found), standardised=standardise)
        if found.marked:
            name, moments = missing_name(found.name), _indicator_moments(found.marked / n_rows)
            yield Column(name, name, **moments, standardised=standardise)
        return
    high = len(found.levels) - 1.0
    yield Column(found.name, found.name, high=high, whole=True, standardised=standardise)


def _response_column(found: ColumnSurvey, n_rows: int) -> Column:
    if found.kind != "text":
        if found.low == found.high:
            raise constant_response(found.name, f"{found.low:g}")
        return Column(found.name, found.name, **_moments(found))
    level = _false_and_true(found)[1]
    return Column(found.name, found.name, level, **_indicator_moments(found.levels[level] / n_rows))


def _moments(found: ColumnSurvey) -> dict[str, Any]:
    return {name: getattr(found, name) for name in ("mean", "sd", "low", "high", "whole")}


def _indicator_moments(share: float) -> dict[str, Any]:
    sd = math.sqrt(share * (1 - share))
    return {"mean": share, "sd": sd, "low": 0.0, "high": 1.0, "whole": True}


def _false_and_true(found: ColumnSurvey) -> tuple[str, str]:
    """The two levels of a response, that which counts as 1 last."""
    if len(found.levels) == 1:
        raise constant_response(found.name, next(iter(found.levels)))
    if pair := false_and_true(found.levels):
        return pair
    shown = some(repr(level) for level in sorted(found.levels))
    last = max(found.levels)
    cure = "Choose the value that counts as 1, e.g. with pandas: "
    cure += f"table[{found.name!r}] = table[{found.name!r}] == {last!r}."
    rule = "hold numbers, booleans, or text such as no and yes"
    raise TableError(f"response {found.name!r}", rule, shown, cure)


def _check_size(survey: TableSurvey, dtype: str, stored_as_they_are: set[Any]) -> None:
    """Check that values fit into `dtype`, and that their moments are finite."""
    most = float(np.finfo(dtype).max)
    large = []
    for name, found in survey.columns.items():
        extreme = max(found.low, found.high, key=abs)
        fits = name not in stored_as_they_are or abs(extreme) <= most
        if found.kind != "text" and not (fits and math.isfinite(found.mean + found.sd)):
            large.append(f"{name} ({extreme:g})")
    if large:
        cure = "Divide them by a power of ten first."
        raise TableError("columns", f"have values that {dtype} can hold", some(large), cure)
