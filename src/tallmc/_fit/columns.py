"""Columns: of a table, as covariates and as the response, and of the design matrix.

What is missing, which levels occur, which columns look like identifiers; how a column explains the
response; how the response becomes numbers; and the matrix for the sampler, (x − mean)/sd.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from shlex import quote
from typing import Literal, NamedTuple, get_args

import numpy as np

from .._core.errors import InvalidInput
from .._ingestion import errors
from .._ingestion.encoding import false_and_true
from .._ingestion.errors import TableError, constant_response, first_not_a_number, some
from .._ingestion.values import MAX_LEVELS, ColumnValues, missing
from ..models.likelihood import ResponseKind

LEAVE_OUT = "leave it out of the formula or with --exclude (exclude)"
LARGEST_EXACT = 2**53  # whole numbers below are exact in float64
_TOO_FEW_TO_TELL = 100
_IDENTIFIER = re.compile(r"(?i:(.*[_ .-])?(id|ids|uuid|guid|rowid)|index|unnamed.*)|.*[a-z]I[dD]")
_FIRST = 2000


def problems(columns: Mapping[str, ColumnValues]) -> list[str]:
    """How many values of each column are missing or infinite."""
    found = []
    for name, column in columns.items():
        if column.kind != "text" and column.numbers.dtype.kind != "f":
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            if column.kind != "text" and np.isfinite(column.numbers.sum(dtype=np.float64)):
                continue
        absent = int(missing(column).sum())
        found += [f"{name}: {absent} missing"] if absent else []
        infinite = 0 if column.kind == "text" else int(np.isinf(column.numbers).sum())
        found += [f"{name}: {infinite} infinite"] if infinite else []
    return found


_DROP = (
    "Drop these rows with --missing drop (missing='drop'), mark them with --missing indicator "
    "(missing='indicator'), fill in the values, or leave the columns out of the formula or with "
    "--exclude (exclude)."
)


def check_complete(columns: Mapping[str, ColumnValues], cure: str = _DROP) -> None:
    """Raise if values of these columns are missing or infinite."""
    errors.check_complete(problems(columns), cure)


def complete_rows(columns: Mapping[str, ColumnValues]) -> np.ndarray:
    """Which rows have no missing value in these columns."""
    empty = [name for name, column in columns.items() if missing(column).all()]
    if empty:
        cure = "Leave them out of the formula or with --exclude (exclude)."
        raise TableError("columns", "have values", f"only missing values in {some(empty)}", cure)
    complete = ~np.any([missing(column) for column in columns.values()], axis=0)
    if not complete.any():
        found = some(problems(columns))
        cure = (
            "Leave columns with many missing values out of the formula or with --exclude (exclude)."
        )
        raise TableError("TABLE", "have rows without missing values", found, cure)
    return complete


def check_known_kinds(columns: Mapping[str, ColumnValues]) -> None:
    """Raise if columns are dates, lists or other values that are neither numbers nor text."""
    found = [f"{name} ({c.described})" for name, c in columns.items() if c.kind == "other"]
    if found:
        cure = (
            "Turn dates into numbers first, e.g. with pandas: "
            "(table[name] - table[name].min()).dt.days, or leave them out of the formula or with "
            "--exclude (exclude)."
        )
        raise TableError("columns", "be numbers, booleans or text", some(found), cure)


def without_unused_levels(column: ColumnValues) -> ColumnValues:
    """The same text without levels that do not occur."""
    if column.kind != "text":
        return column
    counts = np.bincount(column.numbers + 1, minlength=len(column.levels) + 1)[1:]
    if counts.all():
        return column
    codes = np.append(np.cumsum(counts > 0) - 1, -1)
    levels = tuple(level for level, n in zip(column.levels, counts, strict=True) if n)
    return ColumnValues("text", codes[column.numbers], levels)


def as_text(column: ColumnValues) -> ColumnValues:
    """Numbers or booleans as text, with the levels in the order of the numbers."""
    if column.kind == "text":
        return column
    absent = missing(column)
    values, codes = np.unique(column.numbers[~absent], return_inverse=True)
    filled = np.full(len(column), -1)
    filled[~absent] = codes
    names = [str(bool(v)) for v in values.tolist()]
    if column.kind != "boolean":
        names = [str(int(v)) if v == int(v) else repr(v) for v in values.tolist()]
    return ColumnValues("text", filled, tuple(names))


def recode(
    column: ColumnValues, levels: tuple[str, ...], name: str, cure: str = "", *, new: bool = False
) -> np.ndarray:
    """The codes of a column among known levels.

    Other levels follow these if `new`, else they are an error with their first row.
    """
    text = as_text(column)
    places = {level: place for place, level in enumerate(levels)}
    if new:
        for level in text.levels:
            places.setdefault(level, len(places))
    codes = np.array([*(places.get(level, -2) for level in text.levels), -1], np.int64)
    recoded = codes[text.numbers]
    if (unknown := recoded == -2).any():
        row = int(unknown.argmax())
        found = f"{text.levels[text.numbers[row]]!r} in row {row + 1}"
        cure = cure or f"The levels are: {some(levels)}."
        raise TableError(f"column {name!r}", "have levels that the fit has seen", found, cure)
    return recoded


def identifiers(columns: Mapping[str, ColumnValues], n_rows: int) -> Iterable[str]:
    """Notes on columns of numbers that look like identifiers; such large ones are refused."""
    for name, column in columns.items():
        if column.kind != "number":
            continue
        numbers = column.numbers
        is_whole = numbers.dtype.kind in "iu" and len(numbers) > 0
        if is_whole and max(-int(numbers.min()), int(numbers.max())) >= LARGEST_EXACT:
            found = f"{int(numbers.max())}, which looks like an identifier"
            cure = f"{LEAVE_OUT.capitalize()}, or divide it by a power of ten."
            raise TableError(f"column {name!r}", "hold numbers below 2^53", found, cure)
        distinct = n_rows >= _TOO_FEW_TO_TELL and _all_distinct(numbers)
        if distinct or _IDENTIFIER.fullmatch(name):
            why = "a different whole number in each row" if distinct else "by its name"
            yield f"column {name!r} looks like an identifier ({why}): {LEAVE_OUT} if it is one"


def _all_distinct(numbers: np.ndarray) -> bool:
    first = numbers[:_FIRST]
    if len(np.unique(first)) < len(first) or not (np.rint(first) == first).all():
        return False
    return len(np.unique(numbers)) == len(numbers) and bool((np.rint(numbers) == numbers).all())


# How a column of the table explains the response: as a number, 0/1, or a category.
#
# A category with levels a, b, c has two columns of the design, `name[T.b]` and `name[T.c]`: 1 if
# the row has this level. The first level is the baseline. Names are those of statsmodels and
# formulaic.

MAX_CLASSES = 50  # of the response
MAX_NAMED_LEVELS = 1000  # most levels of a category that `categorical` or a formula names
_TOO_FEW_LEVELS_TO_TELL = 10
_CHECKED = 1000


@dataclasses.dataclass(frozen=True)
class FeatureEncoding:
    """What a column of the table holds."""

    name: str
    kind: Literal["number", "boolean", "category"]
    levels: tuple[str, ...] = ()

    def values(self, column: ColumnValues, cure: str = "", *, new: bool = False) -> ColumnValues:
        """The column as this kind; the codes of a category are those of `levels`.

        With `new`, other levels follow these, else they are an error with this `cure`.
        """
        if self.kind == "category":
            if column.kind == "other":
                raise self._refusal("text", column.described)
            if column.levels == self.levels:
                return column
            codes = recode(column, self.levels, self.name, cure, new=new)
            return ColumnValues("text", codes, self.levels)
        if column.kind not in ("number", "boolean"):
            example = first_not_a_number(column.levels[:_CHECKED]) if column.levels else ""
            found = f"text such as {example!r}" if column.kind == "text" else column.described
            raise self._refusal("numbers", found)
        if self.kind == "boolean" and column.kind == "number":
            known = np.isin(column.numbers, (0, 1)) | np.isnan(column.numbers)
            rule = "hold 0 and 1, as in the fit"
            errors.check_rows(known, column.numbers, f"column {self.name!r}", rule)
        return column

    def _refusal(self, expected: str, found: str) -> TableError:
        return TableError(f"column {self.name!r}", f"hold {expected}, as in the fit", found)


def encode_features(
    columns: Mapping[str, ColumnValues], categorical: Collection[str], n_rows: int, *, named: bool
) -> list[FeatureEncoding]:
    """Choose how columns are encoded."""
    chosen, single = [], {}
    for name, column in columns.items():
        if column.kind != "text" and name not in categorical:
            kind: Literal["number", "boolean"] = "boolean" if column.kind == "boolean" else "number"
            chosen.append(FeatureEncoding(name, kind))
            continue
        levels = without_unused_levels(as_text(column)).levels
        if name not in categorical:
            otherwise = f"or pass --categorical {quote(name)} (categorical) if it is text."
            errors.check_meant_as_text(name, levels, otherwise)
        _check_levels(name, levels, n_rows, asked_for=name in categorical or named)
        chosen.append(FeatureEncoding(name, "category", levels))
        if len(levels) == 1:
            single[name] = levels[0]
    errors.check_several_levels(
        single, "Leave them out of the formula or with --exclude (exclude)."
    )
    return chosen


def notes_on_levels(features: Iterable[FeatureEncoding], baselines: Mapping[str, str]) -> list[str]:
    """How many levels categories have, and which one the others are compared with."""
    return [
        f"{feature.name}: {len(feature.levels)} levels"
        + (f", baseline {baselines[feature.name]!r}" if feature.name in baselines else "")
        for feature in features
        if feature.kind == "category"
    ]


def _check_levels(name: str, levels: tuple[str, ...], n_rows: int, *, asked_for: bool) -> None:
    most = MAX_NAMED_LEVELS if asked_for else MAX_LEVELS
    distinct = len(levels) == n_rows >= _TOO_FEW_LEVELS_TO_TELL
    if len(levels) <= most and (asked_for or not distinct):
        return
    found = f"{len(levels)}, such as {levels[0]!r}"
    found += ", a different one in each row" if distinct else ""
    cure = "Leave it out of the formula or with --exclude (exclude), join rare levels, "
    term = name if name.isidentifier() else f"`{name}`"
    if asked_for:
        rule = f"have at most {most} levels"
    else:
        rule = f"have at most {min(most, n_rows - 1)} levels, as it holds text"
        cure += (
            f"pass --categorical {quote(name)} (categorical) for up to {MAX_NAMED_LEVELS} levels, "
        )
    cure += f"or use a random intercept in a formula: (1 | {term})."
    if distinct:  # no level says anything of another row
        cure = "Leave it out of the formula or with --exclude (exclude)."
    raise TableError(f"column {name!r}", rule, found, cure)


# The response.

_LEVEL = "--level (level)"


@dataclasses.dataclass(frozen=True)
class ResponseEncoding:
    """How the response becomes numbers."""

    name: str
    kind: ResponseKind
    levels: tuple[str, ...] = ()
    one: str | None = None
    mean: float = 0.0
    """Subtracted from the response; of survival times, from their logarithm."""
    sd: float = 1.0
    breaks: tuple[float, ...] = ()
    """The times between intervals of piecewise hazards."""

    def values(self, column: ColumnValues) -> np.ndarray:
        """The response as numbers: float64, or int32 codes of classes."""
        if self.levels:
            codes = recode(column, self.levels, self.name)
            if self.one is None:
                return codes.astype(np.int32)
            return (codes == self.levels.index(self.one)).astype(np.float64)
        if column.kind not in ("number", "boolean"):
            example = column.levels[0] if column.levels else column.described
            cure = "Use family bernoulli, categorical or ordinal for a response of text."
            found = f"values such as {example!r}"
            raise TableError(f"response {self.name!r}", "hold numbers", found, cure)
        values = column.numbers.astype(np.float64)
        if self.kind == "times":
            return values
        self._check_range(values)
        return (values - self.mean) / self.sd

    def _check_range(self, values: np.ndarray) -> None:
        if self.kind == "binary":
            good, rule, cure = np.isin(values, (0.0, 1.0)), "hold 0 and 1", ""
        elif self.kind == "count":
            good, rule = (values >= 0) & (values == np.floor(values)), "hold counts (0, 1, 2, …)"
            cure = "Use family gaussian if the response is not a count."
        elif self.kind == "positive":
            good, rule = values > 0, "be positive"
            cure = "Use family gaussian if the response can be zero or negative."
        elif self.kind == "nonnegative":
            good, rule = values >= 0, "be zero or positive"
            cure = "Use family gaussian if the response can be negative."
        elif self.kind == "share":
            good, rule = (values > 0) & (values < 1), "lie between 0 and 1, without the ends"
            cure = "Move shares off the ends, as by (y * (n - 1) + 0.5) / n with n rows."
        else:
            return
        errors.check_rows(good, values, f"response {self.name!r}", rule, cure)


def encode_response(
    name: str, column: ColumnValues, kind: ResponseKind, level: str | Sequence[str] | None
) -> tuple[ResponseEncoding, list[str]]:
    """Choose how a response is encoded, and the notes on it."""
    if kind not in get_args(ResponseKind):
        kinds = ", ".join(get_args(ResponseKind))
        raise InvalidInput("response_kind", f"be one of {kinds}", kind)
    first = column.numbers[0]
    if kind != "times" and (column.numbers == first).all():
        value = column.levels[first] if column.kind == "text" else f"{first:g}"
        raise constant_response(name, value)
    if kind == "binary":
        return _binary(name, column, level)
    if kind in ("classes", "ordered"):
        return _classes(name, column, kind, level)
    if level is not None:
        raise TableError(_LEVEL, "be left out unless the response has levels", repr(level))
    encoding = ResponseEncoding(name, kind)
    encoding.values(column)
    return encoding, []


def standardised(
    encoding: ResponseEncoding, column: ColumnValues, *, centre: bool
) -> ResponseEncoding:
    """The same for (value − mean)/sd; without an intercept the response is not centred."""
    values = column.numbers.astype(np.float64)
    mean = float(values.mean()) if centre else 0.0
    return dataclasses.replace(encoding, mean=mean, sd=float(values.std()))


def _binary(
    name: str, column: ColumnValues, level: str | Sequence[str] | None
) -> tuple[ResponseEncoding, list[str]]:
    if level is not None and not isinstance(level, str | int | float | bool):
        raise TableError(_LEVEL, "be one level for a binary response", repr(level))
    if level is None and column.kind != "text" and np.isin(column.numbers, (0, 1)).all():
        return ResponseEncoding(name, "binary"), []
    levels = without_unused_levels(as_text(column)).levels
    if level is not None:
        one = _known_level(str(level), levels)
    elif len(levels) == 2:
        one = (false_and_true(levels) or levels)[1]
    else:
        found = f"{len(levels)} different values, {levels[0]} to {levels[-1]}"
        cure = f"Choose the one that counts as 1 with {_LEVEL}, or another family."
        raise TableError(f"response {name!r}", "hold two values, such as 0 and 1", found, cure)
    others = [other for other in levels if other != one]
    zeros = repr(others[0]) if len(others) == 1 else f"the {len(others)} others"
    note = f"response {name}: {one!r} counts as 1, {zeros} as 0"
    return ResponseEncoding(name, "binary", levels, one), [note]


def _classes(
    name: str,
    column: ColumnValues,
    kind: Literal["classes", "ordered"],
    level: str | Sequence[str] | None,
) -> tuple[ResponseEncoding, list[str]]:
    levels = without_unused_levels(as_text(column)).levels
    if len(levels) > MAX_CLASSES:
        found = f"{len(levels)}, such as {levels[0]!r}"
        cure = "Join rare classes, or use family gaussian or poisson."
        raise TableError(f"response {name!r}", f"have at most {MAX_CLASSES} classes", found, cure)
    if isinstance(level, str):
        levels = (_known_level(level, levels), *(other for other in levels if other != level))
    elif level is not None:
        chosen = tuple(map(str, level))
        if sorted(chosen) != sorted(levels):
            cure = f"The levels are: {some(levels)}."
            raise TableError(_LEVEL, "list each level of the response once", some(chosen), cure)
        levels = chosen
    if kind == "ordered":
        cure = "" if level is not None else f"; choose another order with {_LEVEL}"
        note = f"response {name}: {' < '.join(levels)}{cure}"
    else:
        note = f"response {name}: {len(levels)} classes, baseline {levels[0]!r}"
    return ResponseEncoding(name, kind, levels), [note]


def _known_level(level: str, levels: tuple[str, ...]) -> str:
    if level not in levels:
        cure = f"The levels are: {some(levels)}."
        raise TableError(_LEVEL, "be a level of the response", level, cure)
    return level


# Columns of the design.

INTERCEPT = "Intercept"


class RawColumn(NamedTuple):
    """One column of a design as it is in the table."""

    numbers: np.ndarray
    by_code: np.ndarray | None = None  # the value of each code, if `numbers` are codes

    def part(self, rows: slice) -> np.ndarray:
        numbers = self.numbers[rows]
        return numbers if self.by_code is None else self.by_code[numbers]

    def moments(self, known: dict[int, np.ndarray]) -> tuple[float, float]:
        """Mean and standard deviation, as a population; shares of codes are counted once."""
        if self.by_code is None:
            exact = self.numbers.astype(np.float64, copy=False)
            with np.errstate(over="ignore", invalid="ignore"):
                return float(exact.mean()), float(exact.std())
        shares = known.get(id(self.numbers))
        if shares is None:
            shares = np.bincount(self.numbers, minlength=len(self.by_code)) / len(self.numbers)
            known[id(self.numbers)] = shares
        mean = float(shares @ self.by_code)
        return mean, float(np.sqrt(shares @ (self.by_code - mean) ** 2))


@dataclasses.dataclass(frozen=True)
class PlainTerms:
    """Terms without a formula: an intercept, and every column of the table as it is."""

    features: tuple[FeatureEncoding, ...]
    intercept: bool

    @property
    def terms(self) -> dict[str, tuple[int, ...]]:
        """The columns of the design that each column of the table gives."""
        found: dict[str, tuple[int, ...]] = {INTERCEPT: (0,)} if self.intercept else {}
        first = len(found)
        for feature in self.features:
            count = max(len(feature.levels) - 1, 0) if feature.kind == "category" else 1
            found[feature.name] = tuple(range(first, first + count))
            first += count
        return found

    @property
    def baselines(self) -> dict[str, str]:
        """The level of each category that has no column."""
        return {each.name: each.levels[0] for each in self.features if each.kind == "category"}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of the design."""
        names = [INTERCEPT] if self.intercept else []
        for feature in self.features:
            if feature.kind == "category":
                names += [f"{feature.name}[T.{level}]" for level in feature.levels[1:]]
            else:
                names.append(feature.name)
        return tuple(names)

    def raw_columns(self, columns: Mapping[str, ColumnValues], n_rows: int) -> list[RawColumn]:
        """The columns of the design, from columns of the table as `FeatureEncoding.values`."""
        ones = RawColumn(np.broadcast_to(np.float64(1.0), n_rows))
        found = [ones] if self.intercept else []
        for feature in self.features:
            numbers = columns[feature.name].numbers
            if feature.kind == "category":
                indicators = np.eye(len(feature.levels))[1:]
                found += [RawColumn(numbers, indicator) for indicator in indicators]
            else:
                found.append(RawColumn(numbers))
        return found
