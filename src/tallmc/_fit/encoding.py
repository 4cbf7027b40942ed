"""Designs, and what a fit remembers of its table, as JSON, so that new rows get the same columns.

A formula is code: that of an encoding that was read from a file must be plain, or passed again.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from shlex import quote
from typing import Any

import numpy as np

from .._core.errors import InvalidInput, counted
from .._core.files import from_json
from .._ingestion.errors import TableError, check_names, check_rows, check_varying, some
from .._ingestion.values import MISSING_LEVEL, ColumnValues, missing_name
from ..models.design import (
    FEWEST_CODED,
    FEWEST_NUMBERS,
    CodedColumns,
    LevelValues,
    values_of_levels,
)
from .columns import (
    INTERCEPT,
    FeatureEncoding,
    PlainTerms,
    RawColumn,
    ResponseEncoding,
    ResponseKind,
    as_text,
    check_complete,
    check_known_kinds,
    complete_rows,
    encode_features,
    encode_response,
    identifiers,
    missing,
    notes_on_levels,
    standardised,
    without_unused_levels,
)
from .formulas import (
    FORMULA,
    FormulaTerms,
    FormulaText,
    GroupText,
    make_terms,
    notes_on_splines,
    split_formula,
    stored_formula,
)
from .model import RegressionModel
from .reading import Table
from .smooths import Smooth, SmoothText, smooths_of_table

_WEIGHT_NAMES = {"weight", "weights", "wt", "sample_weight"}


@dataclasses.dataclass(frozen=True)
class RowRoles:
    """Columns that are no covariates; the logarithm of the exposure is added to the predictor."""

    weights: str | None = None
    offset: str | None = None
    exposure: str | None = None
    trials: str | None = None
    event: str | None = None
    entry: str | None = None
    upper: str | None = None

    @classmethod
    def of(cls, model: RegressionModel) -> RowRoles:
        return cls(**{role.name: getattr(model, role.name) for role in dataclasses.fields(cls)})

    @property
    def names(self) -> dict[str, str]:
        return {role: name for role, name in dataclasses.asdict(self).items() if name is not None}

    def needed(self, *, need_response: bool) -> list[str]:
        """The columns without which a design cannot be made."""
        roles = ["offset", "exposure"]
        if need_response:
            roles += ["trials", "event", "entry", "upper"]
        return [self.names[role] for role in roles if role in self.names]

    def check(self, table: Table) -> None:
        """Raise unless the table has these columns."""
        for role, name in self.names.items():
            if not isinstance(name, str):
                cure = "Add the values to the table as a column."
                raise TableError(_parameter(role), "name a column", type(name).__name__, cure)
            table.column(name, _parameter(role))

    def values(self, table: Table, y: np.ndarray | None) -> dict[str, np.ndarray | None]:
        """Weights, offset and trials in float64; `y` is the response, if there is one."""
        weights, offset = self._numbers(table, "weights"), self._numbers(table, "offset")
        exposure, trials = self._numbers(table, "exposure"), self._numbers(table, "trials")
        if weights is not None:
            check_rows(weights >= 0, weights, _parameter("weights"), "be positive or 0")
            if not weights.any():
                raise TableError(_parameter("weights"), "not all be 0", "0 in every row")
        if exposure is not None:
            check_rows(exposure > 0, exposure, _parameter("exposure"), "be positive")
            offset = np.log(exposure) if offset is None else offset + np.log(exposure)
        if trials is not None:
            whole = (trials >= 1) & (trials == np.floor(trials))
            check_rows(whole, trials, _parameter("trials"), "be whole numbers of at least 1")
            if y is not None:
                check_rows(trials >= y, trials, _parameter("trials"), "be at least the response")
        return {"weights": weights, "offset": offset, "trials": trials}

    def times(self, table: Table, time: np.ndarray, name: str) -> np.ndarray:
        """Times of entry and of both limits, (n, 3), of survival times in the column `name`."""
        event, entry = self._numbers(table, "event"), self._numbers(table, "entry")
        upper, shown = self._numbers(table, "upper"), f"response {name!r}"
        if upper is None:
            cure = "Move times of 0 to half of their unit."
            check_rows(time > 0, time, shown, "be positive", cure)
            upper = time
            if event is not None:
                rule, cure = "be 1 for an event and 0 for censoring", "Recode the column."
                check_rows((event == 0) | (event == 1), event, f"column {self.event!r}", rule, cure)
                upper = np.where(event == 1, time, np.inf)
        else:
            column, cure = f"column {self.upper!r}", "Swap the limits, or drop the row."
            check_rows(time >= 0, time, shown, "not be negative")
            is_known = (upper >= time) & (upper > 0)
            check_rows(is_known, upper, column, f"be at least {name!r}, and positive", cure)
            rule, cure = f"be finite where {name!r} is 0", "Drop rows about which nothing is known."
            check_rows((time > 0) | np.isfinite(upper), upper, column, rule, cure)
        if entry is None:
            entry = np.zeros_like(time)
        else:
            column, cure = f"column {self.entry!r}", "Drop rows that were never at risk."
            check_rows(entry >= 0, entry, column, "not be negative")
            check_rows(entry < time, entry, column, f"be before {name!r}", cure)
        return np.stack([entry, time, upper], axis=1)

    def _numbers(self, table: Table, role: str) -> np.ndarray | None:
        name = self.names.get(role)
        if name is None or name not in table.columns:
            return None
        column = table.columns[name]
        if column.kind not in ("number", "boolean"):
            raise TableError(_parameter(role), "hold numbers", f"{name}, a column of {column.kind}")
        numbers = column.numbers.astype(np.float64)
        if role == "upper":
            rule = "be a number, or inf if the event was not seen"
            check_rows(~np.isnan(numbers), numbers, f"column {name!r}", rule)
        else:
            check_rows(np.isfinite(numbers), numbers, _parameter(role), "be finite")
        return numbers


def _parameter(role: str) -> str:
    return FORMULA if role in ("event", "entry", "upper") else f"--{role} ({role})"


_FORMAT, _VERSION = "tallmc design", 1
_ROWS_AT_ONCE = 2**13


@dataclasses.dataclass(frozen=True)
class ScaledTerms:
    """Terms, and the scaling of their columns: (column of the table − mean)/sd.

    Moments and differences are in float64; only the matrix is rounded. Without an intercept,
    columns are divided by their sds but not centred: a shift could not be undone.
    """

    terms: PlainTerms | FormulaTerms
    means: tuple[float, ...]  # 0 and 1 for the intercept
    sds: tuple[float, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.terms.names

    @classmethod
    def of(
        cls, terms: PlainTerms | FormulaTerms, raw: list[RawColumn], *, standardise: bool
    ) -> ScaledTerms:
        """Measure the columns that the terms gave."""
        means, sds, names = [0.0] * len(raw), [1.0] * len(raw), terms.names
        check_names("the design", names)
        centred, constant = INTERCEPT in names, {}
        shares: dict[int, np.ndarray] = {}
        # Columns of smooths have a scale of their own, to which their prior refers.
        scaled = {name for smooth in smooths_of(terms) for name in smooth.names}
        for place, (name, column) in enumerate(zip(names, raw, strict=True)):
            if name == INTERCEPT or not standardise or name in scaled:
                continue
            mean, sd = column.moments(shares)
            # The moments of equal values may not be exact.
            if sd == 0 or (column.by_code is None and (column.numbers == column.numbers[0]).all()):
                if centred or mean == 0:
                    constant[name] = mean
                continue
            means[place], sds[place] = mean if centred else 0.0, sd
        check_varying(constant, "Leave them out of the formula or with --exclude (exclude)")
        return cls(terms, tuple(means), tuple(sds))

    def matrix(
        self, raw: list[RawColumn], n_rows: int, dtype: str, places: Sequence[int] | None = None
    ) -> np.ndarray:
        """The scaled matrix, row-major, of columns that the terms gave, or of some of them."""
        places = range(len(raw)) if places is None else places
        matrix = np.empty((n_rows, len(places)), dtype)
        exact = np.empty(_ROWS_AT_ONCE)
        rounded = np.empty((len(places), _ROWS_AT_ONCE), dtype)
        chosen = [(raw[place], self.means[place], self.sds[place]) for place in places]
        pieces = [
            (
                column
                if column.by_code is None
                else column._replace(by_code=((column.by_code - mean) / sd).astype(dtype)),
                mean,
                sd,
            )
            for column, mean, sd in chosen
        ]
        for first in range(0, n_rows, _ROWS_AT_ONCE):  # small enough for the cache
            rows = slice(first, min(first + _ROWS_AT_ONCE, n_rows))
            count = rows.stop - first
            with np.errstate(over="ignore", invalid="ignore"):
                for place, (column, mean, sd) in enumerate(pieces):
                    values = column.part(rows)
                    if column.by_code is None and (mean, sd) != (0.0, 1.0):
                        np.subtract(values, mean, out=exact[:count])
                        values = np.divide(exact[:count], sd, out=exact[:count])
                    rounded[place, :count] = values
            if not np.isfinite(rounded[:, :count]).all():
                raise self._not_finite(raw, places, rounded[:, :count], first)
            matrix[rows] = rounded[:, :count].T
        return matrix

    def coded(
        self, raw: list[RawColumn], n_rows: int, dtype: str
    ) -> tuple[np.ndarray | CodedColumns, LevelValues]:
        """The same columns as numbers and codes, and the values of the latter at each level."""
        factors = _factors(raw)
        if n_rows * sum(map(len, factors)) < FEWEST_NUMBERS or not factors:
            return self.matrix(raw, n_rows, dtype), None
        coded = [place for places in factors for place in places]
        others = [place for place in range(len(raw)) if place not in set(coded)]
        dense = self.matrix(raw, n_rows, dtype, others)
        tables = [np.array([raw[place].by_code for place in places]).T for places in factors]
        n_levels = tuple(map(len, tables))
        codes = np.empty((n_rows, len(factors)), np.min_scalar_type(max(n_levels)))
        for k, places in enumerate(factors):
            codes[:, k] = raw[places[0]].numbers
        scaled = [
            (table - np.array(self.means)[places]) / np.array(self.sds)[places]
            for places, table in zip(factors, tables, strict=True)
        ]
        found = CodedColumns(dense, codes, n_levels, (*others, *coded))
        return found, values_of_levels(scaled, dtype)

    def _not_finite(
        self, raw: list[RawColumn], places: Sequence[int], rounded: np.ndarray, first: int
    ) -> TableError:
        at = int((~np.isfinite(rounded)).any(axis=1).argmax())
        place = places[at]
        values = raw[place].part(slice(first, first + rounded.shape[1]))
        bad = ~np.isfinite(values)
        row = int((bad if bad.any() else ~np.isfinite(rounded[at])).argmax())
        value, parameter = float(values[row]), f"column {self.names[place]!r} of the design"
        found = f"{value:g} in row {first + row + 1}"
        if np.isfinite(value):
            cure = "Divide the column by a power of ten first."
            return TableError(parameter, f"have values that {rounded.dtype} can hold", found, cure)
        cure = "Leave out these rows, or change the formula."
        return TableError(parameter, "be finite", found, cure)


def smooths_of(terms: PlainTerms | FormulaTerms) -> tuple[Smooth, ...]:
    return terms.smooths if isinstance(terms, FormulaTerms) else ()


def _factors(raw: list[RawColumn]) -> list[list[int]]:
    """The places of columns that have the same codes, where there are enough of them."""
    found: dict[int, list[int]] = {}
    for place, column in enumerate(raw):
        if column.by_code is not None:
            found.setdefault(id(column.numbers), []).append(place)
    return [places for places in found.values() if len(places) >= FEWEST_CODED]


@dataclasses.dataclass(frozen=True)
class GroupEncoding:
    """A term `(1 + x | group)`: its name, its column of groups, and its terms."""

    name: str
    group: FeatureEncoding
    scaled: ScaledTerms
    columns: tuple[str, ...]
    """The column of the groups; those that are joined; or the two of a difference."""
    is_difference: bool = False
    """Whether it is (1 | a - b), whose columns share their levels."""

    def codes(self, table: Table, *, new: bool) -> np.ndarray:
        """The group of each row; groups that the fit has not seen follow its own if `new`."""
        cure = "`predict` with --new-groups draw (new_groups) draws its effect from N(0, Σ)."
        if self.is_difference:
            cure, new = "Leave rows of others than those of the fit out.", False
        found = [
            self.group.values(column, cure, new=new).numbers.astype(np.int32)
            for column in _group_columns(table, self.columns, self.is_difference)
        ]
        return np.stack(found, axis=1) if self.is_difference else found[0]


def _group_columns(table: Table, names: Sequence[str], is_difference: bool) -> list[ColumnValues]:
    """The columns whose levels are groups: one, or the two of a difference."""
    columns = [without_unused_levels(as_text(table.columns[name])) for name in names]
    return columns if is_difference or len(columns) == 1 else [_joined(columns, names)]


def _joined(columns: Sequence[ColumnValues], names: Sequence[str]) -> ColumnValues:
    """One factor: its levels `a:b` are the combinations that occur."""
    codes, levels = columns[0].numbers, np.array(columns[0].levels, object)
    for column in columns[1:]:
        n_levels = len(column.levels)
        pairs, codes = np.unique(
            codes.astype(np.int64) * n_levels + column.numbers, return_inverse=True
        )
        levels = levels[pairs // n_levels] + ":" + np.array(column.levels, object)[pairs % n_levels]
    if len(set(levels)) < len(levels):
        rule = f"join {' and '.join(names)} to levels that differ"
        raise TableError(FORMULA, rule, "a colon within levels", "Rename the levels.")
    return ColumnValues("text", codes, tuple(levels))


@dataclasses.dataclass(frozen=True)
class GroupDesign:
    """The rows of a term `(1 + x | group)`."""

    encoding: GroupEncoding
    codes: np.ndarray  # of the groups
    x: np.ndarray  # one column per coefficient that each group has, scaled like the design


@dataclasses.dataclass(frozen=True)
class Design:
    """The design matrix and response of a regression.

    The matrix is scaled as `encoding.scaled` says, and has float32 or float64; the intercept comes
    first. `level_values` are the values of columns that are codes. A response of numbers is
    (y − encoding.response.mean)/encoding.response.sd, in float64, and `offset`, which contains the
    logarithm of the exposure, is divided by the same sd. Classes are int32 codes. `notes` are lines
    to print: dropped rows, baselines, the level that counts as 1, identifiers.
    """

    x: np.ndarray | CodedColumns
    y: np.ndarray | None
    weights: np.ndarray | None
    offset: np.ndarray | None
    trials: np.ndarray | None
    groups: tuple[GroupDesign, ...]
    encoding: DesignEncoding
    notes: tuple[str, ...] = ()
    level_values: LevelValues = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.encoding.scaled.names


@dataclasses.dataclass(frozen=True)
class FilledColumn:
    """A covariate with missing values: they are a level of their own, the mean of the others, or
    integrated out."""

    name: str
    mean: float | None
    """Of a column of numbers; None for a category."""
    count: int
    """How many values the table of the fit lacked."""
    imputed: bool = False
    """Whether the model integrates them out; the mean only takes their place in the table."""

    @property
    def has_indicator(self) -> bool:
        return self.mean is not None and not self.imputed

    @property
    def indicator(self) -> str:
        """The column that is 1 where the number is missing."""
        return missing_name(self.name)

    @property
    def note(self) -> str:
        if self.mean is None:
            return f"{self.name}: {self.count} missing values are the level {MISSING_LEVEL!r}"
        if self.imputed:
            law = "are integrated out, normal given the other columns"
            return f"{self.name}: {self.count} missing values {law}"
        filled = f"{self.name}: {self.count} missing values are the mean, {self.mean:.4g}"
        return f"{filled}, and {self.indicator} is 1 there"

    def filled(self, table: Table) -> Table:
        """The table without missing values in this column, and with its indicator."""
        column = table.columns[self.name]
        if self.mean is None:
            text = as_text(column)
            codes = np.where(text.numbers < 0, len(text.levels), text.numbers)
            levels = (*text.levels, MISSING_LEVEL)
            return table.with_column(self.name, ColumnValues("text", codes, levels))
        absent = missing(column)
        numbers = np.where(absent, self.mean, column.numbers)
        table = table.with_column(self.name, ColumnValues("number", numbers))
        if self.imputed or self.indicator in table.columns:
            return table
        indicator = ColumnValues("number", absent.astype(np.float64))
        return table.with_column(self.indicator, indicator)


def _filled_columns(
    table: Table,
    covariates: Sequence[str],
    categorical: Collection[str],
    formula: str | None,
    *,
    impute: bool,
) -> tuple[FilledColumn, ...]:
    """How each covariate with missing values is filled."""
    found = []
    for name in covariates:
        column = table.columns[name]
        count = int(missing(column).sum())
        if not count:
            continue
        if count == table.n_rows:
            cure = "Leave it out of the formula or with --exclude (exclude)."
            raise TableError(f"column {name!r}", "have values", "only missing values", cure)
        if column.kind != "number" or name in categorical:
            found.append(FilledColumn(name, None, count))
            continue
        if re.search(rf"C\(\s*`?{re.escape(name)}`?\s*[,)]", formula or ""):
            cure = f"Pass --categorical {quote(name)} (categorical)."
            rule = "be named as a category if values of C(...) are missing"
            raise TableError(f"column {name!r}", rule, "numbers", cure)
        one = FilledColumn(name, float(np.nanmean(column.numbers)), count, impute)
        if one.has_indicator and one.indicator in table.columns:
            rule = f"leave the name {one.indicator!r} to the indicator of missing values"
            raise TableError("columns", rule, one.indicator, "Rename the column.")
        found.append(one)
    return tuple(found)


def _absent(table: Table, filled: Sequence[FilledColumn]) -> dict[str, np.ndarray]:
    """The missing values of columns that the model imputes."""
    names = [one.name for one in filled if one.imputed and one.name in table.columns]
    return {name: missing(table.columns[name]) for name in names}


def _with_indicators(formula: str, filled: Sequence[FilledColumn]) -> str:
    """The terms of a formula, and one for each indicator of missing values."""
    added = [f"`{one.indicator}`" for one in filled if one.has_indicator]
    return " + ".join([formula, *added])


def _scaled_by_known(scaled: ScaledTerms, absent: Mapping[str, np.ndarray]) -> ScaledTerms:
    """The same terms; the sds of these columns are those of their known values."""
    sds = list(scaled.sds)
    for name, cells in absent.items():  # the others are at the mean
        sds[scaled.names.index(name)] /= float(np.sqrt(1 - cells.mean()))
    return dataclasses.replace(scaled, sds=tuple(sds))


_MOST_IMPUTED = 5


def _check_imputed(scaled: ScaledTerms, names: Sequence[str], model: RegressionModel) -> None:
    """Raise unless each of these columns is a term of its own and occurs in no other."""
    parameter, cure = "--missing impute (missing)", "Pass --missing indicator or drop (missing)."
    if len(names) > _MOST_IMPUTED:
        rule = f"have at most {_MOST_IMPUTED} columns of numbers with missing values"
        raise TableError(parameter, rule, some(names), cure)
    if INTERCEPT not in scaled.names or not model.standardise:
        found = "no intercept" if model.standardise else "columns as they are"
        raise TableError(parameter, "have an intercept and standardised columns", found, cure)
    family = model.families()[0]
    if family.response == "classes":
        raise TableError(parameter, "have a response with one predictor", family.name, cure)
    if "|" in (model.formula or ""):
        raise TableError(parameter, "have no group terms", model.formula, cure)
    for name in names:
        used = re.compile(rf"(?<![\w.]){re.escape(name)}(?![\w.])")
        terms = [term for term in scaled.terms.terms if term != name and used.search(term)]
        if terms or name not in scaled.names:
            rule = f"have {name!r}, which has missing values, as a term of its own only"
            raise TableError(parameter, rule, some(terms or scaled.terms.terms), cure)


@dataclasses.dataclass(frozen=True)
class DesignEncoding:
    """How the columns of a table became a design; it makes the same design of new rows."""

    scaled: ScaledTerms
    response: ResponseEncoding
    roles: RowRoles
    groups: tuple[GroupEncoding, ...]
    formula: str | None
    dtype: str
    filled: tuple[FilledColumn, ...] = ()
    n_dropped: int = 0
    """Rows of the fit that were dropped because of missing values."""

    @property
    def notes_on_missing(self) -> list[str]:
        """What was done about missing values."""
        dropped = f"dropped {counted(self.n_dropped, 'row')} with missing values"
        return ([dropped] if self.n_dropped else []) + [one.note for one in self.filled]

    @property
    def imputed(self) -> tuple[str, ...]:
        """Columns whose missing values are integrated out."""
        return tuple(one.name for one in self.filled if one.imputed)

    def _without_missing(self, table: Table) -> Table:
        for one in self.filled:
            if one.name in table.columns:
                table = one.filled(table)
        return table

    def apply(
        self, table: Table, *, need_response: bool = False, new_groups: bool = False
    ) -> Design:
        """The design of new rows; columns that the fit did not use are ignored.

        With `new_groups`, groups may be others than those of the fit.
        """
        absent = _absent(table, self.filled)
        table = self._without_missing(table)
        columns = self._columns(table, need_response=need_response)
        raw = self.scaled.terms.raw_columns(columns, table.n_rows)
        inner = [group.scaled.terms.raw_columns(columns, table.n_rows) for group in self.groups]
        return self.design(
            table, raw, inner, need_response=need_response, new_groups=new_groups, absent=absent
        )

    def design(
        self,
        table: Table,
        raw: list[RawColumn],
        inner: list[list[RawColumn]],
        *,
        need_response: bool,
        notes: tuple[str, ...] = (),
        codes: bool = False,
        new_groups: bool = False,
        absent: Mapping[str, np.ndarray] | None = None,
    ) -> Design:
        """The design from columns that the terms (`raw`) and groups (`inner`) gave.

        With `codes`, factors are stored as codes. Cells of `absent` are NaN.
        """
        y = self.response.values(table.columns[self.response.name]) if need_response else None
        of_rows = self.roles.values(table, y)
        if y is not None and self.response.kind == "times":
            with np.errstate(divide="ignore"):
                y = np.log(self.roles.times(table, y, self.response.name)) - self.response.mean
        if of_rows["offset"] is not None:
            of_rows["offset"] = of_rows["offset"] / self.response.sd
        groups = tuple(
            GroupDesign(
                group,
                group.codes(table, new=new_groups),
                group.scaled.matrix(part, table.n_rows, self.dtype),
            )
            for group, part in zip(self.groups, inner, strict=True)
        )
        x: np.ndarray | CodedColumns
        values: LevelValues = None
        if codes:
            x, values = self.scaled.coded(raw, table.n_rows, self.dtype)
        else:
            x = self.scaled.matrix(raw, table.n_rows, self.dtype)
            for name, cells in (absent or {}).items():
                x[cells, self.scaled.names.index(name)] = np.nan
        return Design(
            x, y, **of_rows, groups=groups, encoding=self, notes=notes, level_values=values
        )

    def complete(self, table: Table) -> np.ndarray:
        """Which rows have a value in every column that predictions need."""
        table = self._without_missing(table)
        needed = self.needed(need_response=False)
        found = [missing(table.columns[name]) for name in needed if name in table.columns]
        return ~np.any([np.zeros(table.n_rows, bool), *found], axis=0)

    def _columns(self, table: Table, *, need_response: bool) -> dict[str, ColumnValues]:
        """The columns that the design needs, with the kinds and levels of the fit."""
        features = {feature.name: feature for feature in self.features}
        needed = self.needed(need_response=need_response)
        made = {one.indicator for one in self.filled}
        lacking = [name for name in needed if name not in table.columns and name not in made]
        if lacking:
            found = f"{table.description} without {some(lacking)}"
            cure = f"Its columns are: {some(table.columns)}."
            raise TableError("new rows", "have the columns of the fit", found, cure)
        cure = "Fill in the values, drop these rows, or pass --missing nan (missing)."
        checked = [name for name in needed if name != self.roles.upper]  # which may be infinite
        check_complete({name: table.columns[name] for name in checked}, cure)
        return {name: feature.values(table.columns[name]) for name, feature in features.items()}

    def needed(self, *, need_response: bool) -> list[str]:
        """The columns without which a design cannot be made."""
        names = [each.name for each in self.features]
        names += [name for group in self.groups for name in group.columns]
        names += self.roles.needed(need_response=need_response)
        names += [self.response.name] if need_response else []
        return list(dict.fromkeys(names))

    @property
    def features(self) -> list[FeatureEncoding]:
        """The columns of the table that explain the response."""
        parts = [self.scaled, *(group.scaled for group in self.groups)]
        return [feature for part in parts for feature in part.terms.features]

    def to_json(self) -> dict[str, Any]:
        """JSON-able content, without arrays and pickles."""
        content = {"format": _FORMAT, "version": _VERSION, **dataclasses.asdict(self)}
        for scaled in (content["scaled"], *(group["scaled"] for group in content["groups"])):
            scaled["terms"].pop("formula", None)  # follows from the whole formula
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], formula: str | None = None) -> DesignEncoding:
        """The encoding that `to_json` wrote; a formula that is not plain must be passed again."""
        if content.get("format") != _FORMAT or content.get("version") != _VERSION:
            found = f"version {content.get('version')} of {content.get('format')}"
            raise InvalidInput("encoding", f"be version {_VERSION} of {_FORMAT!r}", found)
        try:
            parts = [content["scaled"], *(group["scaled"] for group in content["groups"])]
            names = {feature["name"] for part in parts for feature in part["terms"]["features"]}
            formula = stored_formula(content.get("formula"), formula, names)
            text = FormulaText(None, "", ()) if formula is None else split_formula(formula)
            filled = from_json(tuple[FilledColumn, ...], content.get("filled", ()))
            common = None if formula is None else _with_indicators(text.common, filled)
            groups = [
                {**group, **of._asdict(), "scaled": _with_formula(group["scaled"], of.terms)}
                for group, of in zip(content["groups"], text.groups, strict=True)
            ]
            scaled = _with_formula(content["scaled"], common)
            parsed = {"scaled": scaled, "groups": groups, "formula": formula}
            return from_json(cls, {**content, **parsed})
        except InvalidInput:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput("encoding", "be what to_json wrote", str(error)) from None


def _with_formula(scaled: Mapping[str, Any], formula: str | None) -> Mapping[str, Any]:
    """Scaled terms as JSON, with the part of the formula that they come from."""
    if formula is None:
        return scaled
    return {**scaled, "terms": {**scaled["terms"], "formula": formula}}


def make_design(
    table: Table, model: RegressionModel, kind: ResponseKind, dtype: str, *, codes: bool = False
) -> Design:
    """The design and the response, of this kind, of a table; with `codes`, factors stay codes.

    Without a formula, every column that has no other role explains the response: numbers as they
    are, booleans as 0/1, text as categories whose first level is the baseline. Columns of the
    design have the names of statsmodels and formulaic: "Intercept", "age", "region[T.south]".
    """
    formula, standardise = model.formula, model.standardise
    if formula is not None and not model.intercept:
        cure = "Begin the terms with 0 +."
        raise InvalidInput("--no-intercept (intercept)", "be part of the formula", formula, cure)
    text = None if formula is None else split_formula(formula)
    groups = () if text is None else text.groups
    response = _response_name(model.response, text)
    table = table.without(model.exclude)
    roles = RowRoles.of(model)
    covariates = _covariates(table, text, response, roles)
    categorical = set(model.categorical)
    for name in sorted(categorical):
        table.column(name, "--categorical (categorical)")
    grouping = [name for group in groups for name in group.columns]
    used = [*covariates, *grouping, *roles.names.values(), response]
    table = Table({name: table.columns[name] for name in used}, table.description, table.notes)
    check_known_kinds(table.columns)
    filled: tuple[FilledColumn, ...] = ()
    absent: dict[str, np.ndarray] = {}
    n_dropped = 0
    if model.missing != "raise":
        fills = model.missing in ("indicator", "impute")
        others = [name for name in used if not fills or name not in covariates]
        complete = complete_rows({name: table.columns[name] for name in others})
        n_dropped = int((~complete).sum())
        if n_dropped:
            note = f"dropped {n_dropped} of {table.n_rows} rows with missing values"
            table = dataclasses.replace(table.rows(complete), notes=(*table.notes, note))
        if fills:
            impute = model.missing == "impute"
            filled = _filled_columns(table, covariates, categorical, formula, impute=impute)
            absent = _absent(table, filled)
            for one in filled:
                table = one.filled(table)
            notes_on_filled = tuple(one.note for one in filled)
            table = dataclasses.replace(table, notes=(*table.notes, *notes_on_filled))
            covariates += [one.indicator for one in filled if one.has_indicator]
    # An upper limit may be infinite.
    check_complete({name: of for name, of in table.columns.items() if name != roles.upper})

    of_response, notes = encode_response(response, table.columns[response], kind, model.level)
    found = {name: table.columns[name] for name in covariates}
    if text is None:
        numbers = {name: column for name, column in found.items() if name not in categorical}
        notes += identifiers(numbers, table.n_rows)
        if model.weights is None:
            notes += [
                f"column {name!r} is a covariate; if it weights the rows, "
                f"pass --weights {name} (weights)"
                for name in found
                if name.lower() in _WEIGHT_NAMES
            ]
    features = encode_features(found, categorical, table.n_rows, named=text is not None)
    columns = {feature.name: feature.values(found[feature.name]) for feature in features}

    def of_formula(
        formula: str, smooths: Sequence[SmoothText] = ()
    ) -> tuple[ScaledTerms, list[RawColumn]]:
        names = FormulaText(None, formula, (), tuple(smooths)).variables(list(columns), columns)
        used = [feature for feature in features if feature.name in names]
        made = smooths_of_table(smooths, used, columns, table.n_rows)
        terms, raw = make_terms(formula, used, columns, table.n_rows, made)
        return ScaledTerms.of(terms, raw, standardise=standardise), raw

    if text is None:
        plain = PlainTerms(tuple(features), model.intercept)
        raw = plain.raw_columns(columns, table.n_rows)
        common = ScaledTerms.of(plain, raw, standardise=standardise)
    else:
        common, raw = of_formula(_with_indicators(text.common, filled), text.smooths)
    if absent:
        _check_imputed(common, list(absent), model)
        common = _scaled_by_known(common, absent)
    if not common.names and not groups:
        rule = "have a column besides the response when there is no intercept"
        raise TableError("TABLE", rule, f"only {response}")
    of_groups, inner = [], []
    for terms, names, differ in groups:
        each = [column.levels for column in _group_columns(table, names, differ)]
        levels = each[0] if len(each) == 1 else tuple(sorted(set().union(*each)))
        of_group, raw_of_group = of_formula(terms)
        name = GroupText(terms, names, differ).group
        feature = FeatureEncoding(name, "category", levels)
        of_groups.append(GroupEncoding(f"{terms} | {name}", feature, of_group, names, differ))
        inner.append(raw_of_group)
    if standardise and kind == "number":
        centre = INTERCEPT in common.names
        of_response = standardised(of_response, table.columns[response], centre=centre)
    if kind == "times":
        centre = standardise and INTERCEPT in common.names
        of_response = _with_times(of_response, table, roles, model, centre=centre)
    encoding = DesignEncoding(
        common, of_response, roles, tuple(of_groups), formula, dtype, filled, n_dropped
    )
    if text is not None:
        notes += notes_on_splines(text.common, common.names)
    lines = (*table.notes, *notes, *notes_on_levels(features, common.terms.baselines))
    codes = codes and not absent
    return encoding.design(
        table, raw, inner, need_response=True, notes=lines, codes=codes, absent=absent
    )


_INTERVALS = 10


def _with_times(
    encoding: ResponseEncoding,
    table: Table,
    roles: RowRoles,
    model: RegressionModel,
    *,
    centre: bool,
) -> ResponseEncoding:
    """Survival times in units of their mean, and the intervals of piecewise hazards."""
    time = encoding.values(table.columns[encoding.name])
    _, lower, upper = roles.times(table, time, encoding.name).T
    if not np.isfinite(upper).any():
        cure = "Censored times alone do not bound the time of an event."
        raise TableError(f"response {encoding.name!r}", "have events", "none", cure)
    found = np.where(lower > 0, lower, upper)
    mean, breaks = float(np.log(found.mean())) if centre else 0.0, model.breaks
    if model.families()[0].name != "piecewise_exponential":
        breaks = ()
    elif breaks is None:  # as many events in each interval
        levels = np.arange(1, _INTERVALS) / _INTERVALS
        places = np.unique(np.quantile(found[np.isfinite(upper)], levels, method="lower"))
        breaks = tuple(places[places < found.max()].tolist())
    return dataclasses.replace(encoding, mean=mean, breaks=breaks)


def _response_name(given: str | None, text: FormulaText | None) -> str:
    named = None if text is None else text.response
    if given is None and named is None:
        cure = "Pass --response (response) or write it before ~ in the formula."
        raise InvalidInput("--response", "name a column", "none", cure)
    if given is not None and named not in (None, given):
        raise InvalidInput("--response", f"be that of the formula, {named!r}", given)
    return str(given if given is not None else named)


def _covariates(
    table: Table, text: FormulaText | None, response: str, roles: RowRoles
) -> list[str]:
    table.column(response, "--response")
    roles.check(table)
    if response in roles.names.values():
        raise TableError("--response", "have no other role", response)
    taken = {response, *roles.names.values()}
    free = [name for name in table.columns if name not in taken]
    if text is None:
        return free
    for name in (name for group in text.groups for name in group.columns):
        table.column(name, FORMULA)
    needed = text.variables(free, table.columns)
    if response in needed:
        raise TableError(FORMULA, "not explain the response by itself", response)
    for name in sorted(needed):
        table.column(name, FORMULA)
    return [name for name in table.columns if name in needed]
