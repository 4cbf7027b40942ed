"""The first pass over a table: moments, extremes, levels, and all values that cannot be used.

Means and sums of squares are merged batch by batch (Chan et al., 1983), in float64:

    δ = m_b − m_a,   m = m_a + δ n_b/n,   S = S_a + S_b + δ² n_a n_b/n,   n = n_a + n_b
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from .errors import (
    TableError,
    check_any_rows,
    check_complete,
    check_response,
    first_not_a_number,
    some,
)
from .values import ColumnValues, Kind, TableBatch

_DESCRIPTIONS = {"number": "numbers", "boolean": "booleans", "text": "text"}


class UnclearColumns(TableError):
    """Columns that are not numbers, booleans or text in all places.

    **Arguments:**

    - `columns`: a description of each column, by its name.
    """

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
        self.missing, self.infinite = Unusable(), Unusable()

    @property
    def sd(self) -> float:
        """The standard deviation of the rows as a population."""
        return math.sqrt(self._squares / self.count) if self.count else 0.0

    @property
    def problems(self) -> Iterator[str]:
        """What is wrong with the values."""
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
        """Add the values of a batch."""
        if values.kind == "text":
            self._add_text(values, batch, max_levels)
        else:
            self._add_numbers(values.numbers, batch)

    def _add_text(self, values: ColumnValues, batch: TableBatch, max_levels: int) -> None:
        self.missing.add(values.numbers < 0, batch)
        counts = np.bincount(values.numbers + 1, minlength=len(values.levels) + 1)[1:]
        for level, count in zip(values.levels, counts.tolist(), strict=True):
            if count:
                self.levels[level] += count
        if len(self.levels) > max_levels:
            example = first_not_a_number(self.levels)
            cure = (
                "Drop the column, turn it into numbers, join rare levels, or raise --max-levels "
                "(max_levels)."
            )
            rule = f"have at most {max_levels} levels, as it holds text"
            raise TableError(f"column {self.name!r}", rule, f"more, such as {example!r}", cure)

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
            self._merge(numbers, total)
        self.low = min(self.low, float(numbers.min()))
        self.high = max(self.high, float(numbers.max()))
        if self.whole and values.dtype.kind == "f":
            self.whole = bool((np.rint(numbers) == numbers).all())

    def _merge(self, numbers: np.ndarray, total: float) -> None:
        new = len(numbers)
        mean = total / new
        centred = numbers - mean
        change, count = mean - self.mean, self.count + new
        # The sum of squares of NumPy has the same bits on any number of cores; BLAS may not.
        self._squares += float(np.einsum("i,i->", centred, centred))
        self._squares += change * change * (self.count * new / count)
        self.mean += change * (new / count)
        self.count = count


@dataclasses.dataclass(frozen=True)
class TableSurvey:
    """What the first pass over a table found."""

    n_rows: int
    columns: Mapping[str, ColumnSurvey]


def survey_table(
    batches: Iterator[TableBatch], response: str | None, max_levels: int, name: str
) -> TableSurvey:
    """Survey all batches.

    **Raises:** `UnclearColumns` if a column is not of one kind; `TableError` if columns differ
    between files or hold values that cannot be used.
    """
    columns: dict[str, ColumnSurvey] = {}
    n_rows, first = 0, ""
    for batch in batches:
        if not columns:
            columns = {column: ColumnSurvey(column) for column in batch.columns}
            first = batch.origin
            if response is not None:
                check_response(response, columns, first)
        _check_columns(batch, columns, first)
        clashes = {
            column: problem
            for column, survey in columns.items()
            if (problem := survey.clash(batch.columns[column], batch.origin)) is not None
        }
        if clashes:
            raise UnclearColumns(clashes)
        for column, survey in columns.items():
            survey.add(batch.columns[column], batch, max_levels)
        n_rows += batch.n_rows
    check_any_rows(n_rows, name)
    check_complete([problem for survey in columns.values() for problem in survey.problems])
    return TableSurvey(n_rows, columns)


def _check_columns(batch: TableBatch, columns: Mapping[str, ColumnSurvey], first: str) -> None:
    if batch.columns.keys() != columns.keys():
        lacking = sorted(columns.keys() - batch.columns.keys())
        further = sorted(batch.columns.keys() - columns.keys())
        found = f"{batch.origin}, which lacks {some(lacking)}" if lacking else batch.origin
        found += f"{' and' if lacking else ', which'} also has {some(further)}" if further else ""
        raise TableError("TABLE", f"have the columns of {first} in every file", found)
