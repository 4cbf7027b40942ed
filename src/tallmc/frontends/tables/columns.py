"""Columns of a table: what is missing, which levels occur, which look like identifiers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from ...ingestion.errors import TableError, some
from ...ingestion.values import ColumnValues

LEAVE_OUT = "leave it out with --exclude (exclude)"
LARGEST_EXACT = 2**53
"""Whole numbers below are exact in float64."""
_TOO_FEW_TO_TELL = 100
_IDENTIFIER = re.compile(r"(?i:(.*[_ .-])?(id|ids|uuid|guid|rowid)|index|unnamed.*)|.*[a-z]I[dD]")
_FIRST = 2000


def missing(column: ColumnValues) -> np.ndarray:
    """Which values are missing.

    >>> missing(ColumnValues("text", np.array([0, -1]), ("a",))).tolist()
    [False, True]
    """
    if column.kind == "text":
        return column.numbers < 0
    if column.numbers.dtype.kind == "f":
        return np.isnan(column.numbers)
    return np.zeros(len(column), bool)


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


def check_complete(columns: Mapping[str, ColumnValues]) -> None:
    """Raise if values of these columns are missing or infinite."""
    found = problems(columns)
    if found:
        cure = "Drop these rows with --drop-missing (drop_missing=True), fill in the values, or "
        cure += "leave out the columns with --exclude (exclude)."
        raise TableError("columns", "have no missing or infinite values", some(found), cure)


def complete_rows(columns: Mapping[str, ColumnValues]) -> np.ndarray:
    """Which rows have no missing value in these columns."""
    empty = [name for name, column in columns.items() if missing(column).all()]
    if empty:
        cure = "Leave them out with --exclude (exclude)."
        raise TableError("columns", "have values", f"only missing values in {some(empty)}", cure)
    complete = ~np.any([missing(column) for column in columns.values()], axis=0)
    if not complete.any():
        found = some(problems(columns))
        cure = "Leave out columns with many missing values with --exclude (exclude)."
        raise TableError("TABLE", "have rows without missing values", found, cure)
    return complete


def check_known_kinds(columns: Mapping[str, ColumnValues]) -> None:
    """Raise if columns are dates, lists or other values that are neither numbers nor text."""
    found = [f"{name} ({c.described})" for name, c in columns.items() if c.kind == "other"]
    if found:
        cure = (
            "Turn dates into numbers first, e.g. with pandas: "
            "(table[name] - table[name].min()).dt.days, or leave them out with --exclude (exclude)."
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
    """Numbers or booleans as text, with the levels in the order of the numbers.

    >>> years = as_text(ColumnValues("number", np.array([2020.0, np.nan, 1999.0])))
    >>> years.levels, years.numbers.tolist()
    (('1999', '2020'), [1, -1, 0])
    """
    if column.kind == "text":
        return column
    absent = missing(column)
    values, codes = np.unique(column.numbers[~absent], return_inverse=True)
    filled = np.full(len(column), -1)
    filled[~absent] = codes
    return ColumnValues("text", filled, tuple(level_name(v, column.kind) for v in values.tolist()))


def level_name(value: float | bool, kind: str) -> str:
    """The name of a number as a level.

    >>> level_name(2020.0, "number"), level_name(0.5, "number"), level_name(1.0, "boolean")
    ('2020', '0.5', 'True')
    """
    if kind == "boolean":
        return str(bool(value))
    return str(int(value)) if value == int(value) else repr(value)


def recode(column: ColumnValues, levels: tuple[str, ...], name: str) -> np.ndarray:
    """The codes of a column among known levels; other levels are an error with their first row."""
    text = as_text(column)
    places = {level: place for place, level in enumerate(levels)}
    codes = np.array([*(places.get(level, -2) for level in text.levels), -1], np.int64)
    recoded = codes[text.numbers]
    unknown = recoded == -2
    if unknown.any():
        row = int(unknown.argmax())
        found = f"{text.levels[text.numbers[row]]!r} in row {row + 1}"
        cure = f"The levels are: {some(levels)}."
        raise TableError(f"column {name!r}", "have levels that the fit has seen", found, cure)
    return recoded


def identifiers(columns: Mapping[str, ColumnValues], n_rows: int) -> Iterable[str]:
    """Notes on columns of numbers that look like identifiers; such large ones are refused."""
    for name, column in columns.items():
        if column.kind != "number":
            continue
        if column.numbers.dtype.kind in "iu" and _is_large(column.numbers):
            found = f"{int(column.numbers.max())}, which looks like an identifier"
            cure = f"{LEAVE_OUT.capitalize()}, or divide it by a power of ten."
            raise TableError(f"column {name!r}", "hold numbers below 2^53", found, cure)
        distinct = n_rows >= _TOO_FEW_TO_TELL and _all_distinct(column.numbers)
        if distinct or _IDENTIFIER.fullmatch(name):
            why = "a different whole number in each row" if distinct else "by its name"
            yield f"column {name!r} looks like an identifier ({why}): {LEAVE_OUT} if it is one"


def _is_large(numbers: np.ndarray) -> bool:
    return bool(len(numbers)) and max(-int(numbers.min()), int(numbers.max())) >= LARGEST_EXACT


def _all_distinct(numbers: np.ndarray) -> bool:
    """Whether all are different whole numbers."""
    first = numbers[:_FIRST]
    if len(np.unique(first)) < len(first) or not (np.rint(first) == first).all():
        return False
    return len(np.unique(numbers)) == len(numbers) and bool((np.rint(numbers) == numbers).all())
