"""Average responses, effects and contrasts of a column, over rows, groups of rows and draws.

    response    (1/n) Σ_i E(y | x_i)
    number      (1/n) Σ_i [E(y | x_i + h) − E(y | x_i − h)] / 2h,   h = 0.02 sd(x), within the range
    levels      (1/n) Σ_i E(y | x_i with a) − (1/n) Σ_i E(y | x_i with b), or their ratio

The rows are those that the user passes, all or those of a group. An effect depends on them unless
the link is the identity. Tables and row stores are read in pieces; only sums per draw are kept.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._core.errors import InvalidInput, check_int, check_number
from .._ingestion.values import ColumnValues
from .._rows.resident import ResidentRows
from .._rows.sharded import ShardedRows
from ..results.draws import Draws
from ..results.prediction import DrawnLaw, UsedDraws, used_draws
from .columns import FeatureEncoding
from .reading import Table, read_table
from .regression import form_of
from .store_design import opened_rows, table_of_lines

if TYPE_CHECKING:
    import pandas as pd

_RELATIVE_STEP = 0.02
"""In sds of the column: small for the curvature of the link, large for single precision."""
_MOST_ROWS = 20_000
_PIECE = 2**16
_MOST_GROUPS = 1000


@dataclasses.dataclass(frozen=True)
class MarginalEffects:
    """Average responses, or effects of a column on them, with their uncertainty.

    **Arguments:**

    - `column`: the column; None for average responses.
    - `labels`: one per effect: "mean", "per unit", or the contrast "south − north"; with the class,
      if the response has classes.
    - `where`: the group (`by`) and the fixed values (`at`) of each effect.
    - `draws`: the effect in each draw, (draws, effects).
    - `interval`: the probability of the interval.
    - `n_rows`: how many rows were averaged.
    """

    column: str | None
    labels: tuple[str, ...]
    where: tuple[Mapping[str, Any], ...]
    draws: np.ndarray
    interval: float
    n_rows: int

    @property
    def mean(self) -> np.ndarray:
        return self.draws.mean(axis=0)

    def to_frame(self) -> pd.DataFrame:
        """A table with one row per effect: its group and fixed values, mean, sd and interval."""
        import pandas as pd

        tail = (1 - self.interval) / 2
        low, high = np.quantile(self.draws, [tail, 1 - tail], axis=0)
        content: dict[str, Any] = {
            name: [each[name] for each in self.where] for name in self.where[0]
        }
        content |= {"mean": self.mean, "sd": self.draws.std(axis=0), "low": low, "high": high}
        return pd.DataFrame(content, index=pd.Index(self.labels, name=self.column))

    def __repr__(self) -> str:
        places = (", ".join(f"{name} = {value}" for name, value in w.items()) for w in self.where)
        names = (
            f"{label} ({place})" if place else label
            for label, place in zip(self.labels, places, strict=True)
        )
        shown = ", ".join(
            f"{name}: {mean:.4g}" for name, mean in zip(names, self.mean, strict=True)
        )
        return f"MarginalEffects({self.column or 'response'}: {shown}; {self.n_rows:,} rows)"


def marginal_effects(
    draws: Draws,
    rows: Any = None,
    column: str | None = None,
    *,
    by: str | Sequence[str] = (),
    at: Mapping[str, Any] | None = None,
    contrasts: Sequence[tuple[Any, Any]] | None = None,
    comparison: str = "difference",
    interval: float = 0.9,
    n_draws: int = 400,
    n_rows: int | None = _MOST_ROWS,
) -> MarginalEffects:
    """The average response, or the average effect of a column of the table on it.

    **Arguments:**

    - `draws`: the draws of `tallmc.fit`, or of `tallmc fit` through `tallmc.load`.
    - `rows`: the table or the row store over whose rows to average; by default what `tallmc.fit`
      has read.
    - `column`: a column of the table. A number has the effect per unit; a category has contrasts.
      None for the average response itself.
    - `by`: columns of the table: one average per group of rows with the same values in them.
    - `at`: values of columns, or lists of values: one average for each combination, over all rows
      with these values in place of their own.
    - `contrasts`: pairs (a, b) of levels, or of numbers, for a − b. By default each level less the
      baseline.
    - `comparison`: "difference", or "ratio" for the ratio of the two averages of a contrast, such
      as a risk ratio.
    - `interval`: the probability of the interval.
    - `n_draws`: how many draws are used at most.
    - `n_rows`: how many rows are used at most, drawn at random; None for all.

    **Returns:** a `MarginalEffects`, one effect per contrast, group and combination, and per class
    if there are several.
    """
    interval = check_number("interval", interval, 0, 1, low_open=True, high_open=True)
    if comparison not in ("difference", "ratio"):
        raise InvalidInput("comparison", 'be "difference" or "ratio"', comparison)
    form = form_of(draws)
    if form is None:
        cure = "Use tallmc.fit; after tallmc.load pass its formula."
        raise InvalidInput("draws", "come from a fit of a table", "others", cure)
    if draws.weights is not None:
        raise InvalidInput("draws", "all count the same", "draws of decreasing steps")
    rows = draws.source if rows is None else rows
    if rows is None:
        cure = "Loaded draws keep no rows: pass the table or the row store of the fit."
        raise InvalidInput("rows", "be those to average over", "none", cure)
    source = _Source.of(rows, n_rows)
    features = {feature.name: feature for feature in form.encoding.features}
    by = [by] if isinstance(by, str) else list(by)
    grid = _grid(at or {}, features)
    for name in by:
        source.first.column(name, "by")
    if column is not None:
        source.first.column(column, "column")
        if column not in features:
            known = ", ".join(features)
            raise InvalidInput("column", f"be one that the fit uses ({known})", column)
    feature = None if column is None else features[column]
    changes = _changes(source, feature, contrasts, comparison)
    used = used_draws(draws, n_draws)
    sums = _Sums(draws, used, by)
    for piece in source.pieces():
        for place, (fixed, change) in enumerate(itertools.product(grid, changes)):
            table = piece
            for name, value in fixed.items():
                table = _with_value(table, features[name], value)
            sums.add(place, piece, *change.tables(table))
    labels, where, columns = [], [], []
    for place, (fixed, change) in enumerate(itertools.product(grid, changes)):
        for group, values in sums.averages(place):
            effect = change.effect(*values)
            flat = effect.reshape(len(effect), -1)
            names = form.classes if effect.ndim > 1 and form.classes else ("",)
            labels += [f"{change.label}, {name}" if name else change.label for name in names]
            where += [dict(zip(by, group, strict=True)) | fixed] * len(names)
            columns.append(flat)
    found = np.concatenate(columns, axis=1)
    return MarginalEffects(column, tuple(labels), tuple(where), found, interval, sums.n_rows)


class _Sums:
    """Sums of responses in each draw by question and group of rows."""

    def __init__(self, draws: Draws, used: UsedDraws, by: Sequence[str]):
        self.draws, self.used, self.by = draws, used, by
        self.totals: dict[tuple[int, tuple[Any, ...]], list[np.ndarray]] = {}
        self.counts: dict[tuple[Any, ...], int] = {}
        self.n_rows = 0

    def add(self, place: int, piece: Table, *tables: Table) -> None:
        """Add the responses of a question's tables; groups are those of the piece itself."""
        groups, codes = _groups([(name, piece.columns[name]) for name in self.by], piece.n_rows)
        predictive = self.draws.predictive
        assert predictive is not None
        parts = []
        for table in tables:
            rows = ResidentRows(predictive.encode(table))
            parts.append(DrawnLaw(predictive, self.used, rows).sums(codes, len(groups)))
        sizes = np.bincount(codes, minlength=len(groups))
        for number, group in enumerate(groups):
            known = self.totals.setdefault((place, group), [np.zeros(())] * len(tables))
            known[:] = [total + part[number] for total, part in zip(known, parts, strict=True)]
            if place == 0:
                self.counts[group] = self.counts.get(group, 0) + int(sizes[number])
        if len(self.counts) > _MOST_GROUPS:
            cure = "Cut numbers into classes first."
            rule = f"have at most {_MOST_GROUPS:,} groups"
            raise InvalidInput("by", rule, f"{len(self.counts):,}", cure)
        self.n_rows += piece.n_rows if place == 0 else 0

    def averages(self, place: int) -> Iterator[tuple[tuple[Any, ...], list[np.ndarray]]]:
        for group in sorted(self.counts):
            yield group, [total / self.counts[group] for total in self.totals[place, group]]


def _groups(
    columns: Sequence[tuple[str, ColumnValues]], n_rows: int
) -> tuple[list[tuple[Any, ...]], np.ndarray]:
    """The groups of rows, and the number of each row's group."""
    if not columns:
        return [()], np.zeros(n_rows, np.int64)
    numbers = np.stack([values.numbers for _, values in columns], axis=1).astype(np.float64)
    found, codes = np.unique(numbers, axis=0, return_inverse=True)

    def shown(name: str, values: ColumnValues, number: float) -> Any:
        if np.isnan(number) or (values.kind == "text" and number < 0):
            raise InvalidInput("by", "have no missing values", name)
        if values.kind == "text":
            return values.levels[int(number)]
        return bool(number) if values.kind == "boolean" else float(number)

    groups = [
        tuple(shown(*column, number) for column, number in zip(columns, line, strict=True))
        for line in found
    ]
    return groups, codes.ravel()


@dataclasses.dataclass(frozen=True)
class _Source:
    """A table, or the rows of a row store as one."""

    first: Table
    """The table, or the first line of the row store."""
    stored: ShardedRows | None
    numbers: np.ndarray
    """The rows to use."""

    @classmethod
    def of(cls, rows: Any, most: int | None) -> _Source:
        found = opened_rows(rows)
        stored = found if isinstance(found, ShardedRows) else None
        if stored is None:
            table = read_table(found)
            count = table.n_rows
        else:
            count = stored.n_rows
            table = table_of_lines(stored.lines(np.zeros(1, np.int64)), stored.shards.manifest)
        most = count if most is None else check_int("n_rows", most, 1)
        if count <= most:
            return cls(table, stored, np.arange(count))
        chosen = np.random.default_rng(0).choice(count, most, replace=False, shuffle=False)
        return cls(table, stored, np.sort(chosen))

    def pieces(self) -> Iterator[Table]:
        for start in range(0, len(self.numbers), _PIECE):
            chosen = self.numbers[start : start + _PIECE]
            if self.stored is None:
                yield self.first.rows(chosen)
            else:
                yield table_of_lines(self.stored.lines(chosen), self.stored.shards.manifest)

    def range(self, name: str) -> tuple[float, float, float]:
        """Sd and extremes of a column of numbers."""
        if self.stored is None:
            numbers = self.first.columns[name].numbers.astype(np.float64)
            found = (of(numbers) for of in (np.nanstd, np.nanmin, np.nanmax))
            sd, low, high = map(float, found)
            return sd, low, high
        columns = self.stored.shards.manifest.columns
        column = next(column for column in columns if name in (column.source, column.name))
        return column.sd, column.low, column.high


def _with_value(table: Table, feature: FeatureEncoding, value: Any) -> Table:
    """The table with one value in a column."""
    if feature.kind == "category":
        codes = np.zeros(table.n_rows, np.int64)
        return table.with_column(feature.name, ColumnValues("text", codes, (str(value),)))
    return _with_numbers(table, feature.name, np.full(table.n_rows, float(value)))


def _with_numbers(table: Table, name: str, numbers: np.ndarray) -> Table:
    return table.with_column(name, ColumnValues("number", numbers))


def _grid(at: Mapping[str, Any], features: Mapping[str, FeatureEncoding]) -> list[dict[str, Any]]:
    """All combinations of values."""
    values = {}
    for name, given in at.items():
        if name not in features:
            raise InvalidInput(
                "at", f"name columns that the fit uses ({', '.join(features)})", name
            )
        several = not isinstance(given, str) and np.ndim(given) == 1
        values[name] = list(given) if several else [given]
        for value in values[name]:
            _check_value("at", features[name], value)
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


def _check_value(parameter: str, feature: FeatureEncoding, value: Any) -> None:
    if feature.kind != "category":
        check_number(f"{parameter} ({feature.name})", value)


class _Change(NamedTuple):
    """A question: the tables whose responses it needs, and what it makes of their averages."""

    label: str
    tables: Callable[[Table], Sequence[Table]]
    effect: Callable[..., np.ndarray]


def _changes(
    source: _Source,
    feature: FeatureEncoding | None,
    contrasts: Sequence[tuple[Any, Any]] | None,
    comparison: str,
) -> list[_Change]:
    """The changes of a column; the response itself without one."""
    if feature is None:
        return [_Change("mean", lambda table: [table], lambda average: average)]
    is_ratio = comparison == "ratio"
    sign, of_two = ("/", np.divide) if is_ratio else ("−", np.subtract)
    names = {}
    if contrasts is None and feature.kind == "category":
        contrasts = [(level, feature.levels[0]) for level in feature.levels[1:]]
    if contrasts is None and feature.kind == "boolean":
        contrasts, names = [(1.0, 0.0)], {1.0: "true", 0.0: "false"}
    if contrasts is not None:
        for value in itertools.chain.from_iterable(contrasts):
            _check_value("contrasts", feature, value)

        def between(high: Any, low: Any) -> _Change:
            label = f"{names.get(high, high)} {sign} {names.get(low, low)}"
            return _Change(
                label, lambda table: [_with_value(table, feature, v) for v in (high, low)], of_two
            )

        return [between(*pair) for pair in contrasts]
    if is_ratio:
        cure = "Pass contrasts=[(a, b)] with two numbers."
        raise InvalidInput("comparison", 'be "difference" for an effect per unit', comparison, cure)
    sd, low, high = source.range(feature.name)
    step = _RELATIVE_STEP * (sd or 1.0)

    def moved(table: Table) -> list[Table]:
        centre = table.columns[feature.name].numbers.astype(np.float64)
        if low + step < high - step:  # splines are not defined outside of the range of the table
            centre = np.clip(centre, low + step, high - step)
        return [_with_numbers(table, feature.name, centre + h) for h in (step, -step)]

    return [_Change("per unit", moved, lambda high, low: (high - low) / (2 * step))]
