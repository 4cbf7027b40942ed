"""Errors about tables, and the rules on tables that `tallmc ingest` and `tallmc fit` share."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from .._core.errors import InvalidInput

INTERCEPT = "intercept"
_MAX_NAMES = 20
_CHECKED = 1000
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?|[+-]?\d{1,3}(\.\d*)?")


class TableError(InvalidInput):
    """A table that cannot be read, or a column that cannot be used."""


def some(names: Iterable[str]) -> str:
    """List names in a message, at most 20 of them."""
    shown = list(names)
    more = f" and {len(shown) - _MAX_NAMES} more" if len(shown) > _MAX_NAMES else ""
    return ", ".join(shown[:_MAX_NAMES]) + more


def check_rows(
    good: np.ndarray, values: np.ndarray, parameter: str, rule: str, cure: str = ""
) -> None:
    """Raise an error that names the first row that is not good."""
    if not good.all():
        row = int(good.argmin())
        raise TableError(parameter, rule, f"{values[row]:g} in row {row + 1}", cure)


def unreadable(path: Path, kind: str, error: Exception | str, cure: str = "") -> TableError:
    """The error about a file that is not what its name says."""
    reason = " ".join(str(error).split())
    return TableError("TABLE", f"be a readable {kind} file", f"{path.name}: {reason}", cure)


def first_not_a_number(values: Iterable[object]) -> str:
    """The entry that made a column text, e.g. a single "?" among numbers."""
    texts = list(map(str, values))
    return next(itertools.filterfalse(is_number, texts), texts[0])


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_names(origin: str, names: Iterable[str]) -> None:
    """Check that the names of the columns are different and not empty."""
    names = list(names)
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        found = f"more than one {some(repeated)}"
        raise TableError("column names", f"be different in {origin}", found, "Rename or drop them.")
    empty = [number for number, name in enumerate(names, start=1) if not name.strip()]
    if empty:
        cure = "pandas writes row numbers this way: use table.to_csv(..., index=False)."
        found = f"column {empty[0]} without a name"
        raise TableError("column names", f"not be empty in {origin}", found, cure)


def check_any_rows(n_rows: int, origin: str) -> None:
    if n_rows == 0:
        raise TableError("TABLE", "have at least one row", f"{origin} with none")


def check_complete(problems: Collection[str], cure: str) -> None:
    """Raise if `problems` names columns with missing or infinite values."""
    if problems:
        raise TableError("columns", "have no missing or infinite values", some(problems), cure)


def check_varying(constant: Mapping[str, float], drop: str) -> None:
    """Raise if there are columns with one value in all rows; `constant` has their values."""
    if constant:
        found = some(f"{name} ({value:g} in every row)" for name, value in constant.items())
        cure = f"{drop} (the intercept is added automatically) "
        cure += "or pass --no-standardise (standardise=False)."
        raise TableError("columns", "vary to be standardised", found, cure)


def check_several_levels(single: Mapping[str, str], cure: str) -> None:
    """Raise if there are columns of text with one level in all rows; `single` has the levels."""
    if single:
        found = some(f"{name} ({level!r} in every row)" for name, level in single.items())
        raise TableError("columns of text", "have several levels", found, cure)


def check_meant_as_text(name: str, levels: Sequence[str], otherwise: str) -> None:
    """Raise if text seems to be numbers, with separators of thousands or a few other words."""
    some_levels = levels[:_CHECKED]
    with_commas = [level for level in some_levels if "," in level]
    if with_commas and all(_THOUSANDS.fullmatch(level.strip()) for level in some_levels):
        rule = "hold numbers without separators of thousands"
        cure = f"Read it with pandas.read_csv(path, thousands=','), {otherwise}"
        raise TableError(f"column {name!r}", rule, f"text such as {with_commas[0]!r}", cure)
    numbers = [level for level in some_levels if is_number(level)]
    if len(some_levels) > 2 and len(some_levels) / 2 <= len(numbers) < len(some_levels):
        found = f"{first_not_a_number(some_levels)!r} among numbers"
        cure = f"Leave the entry empty where a number is missing, {otherwise}"
        raise TableError(f"column {name!r}", "hold numbers or text, not both", found, cure)


def other_columns(lacking: list[str], further: list[str], name: str, first: str) -> TableError:
    """The error about a file `name` whose columns are not those of the file `first`."""
    parts = [f"lacks {some(lacking)}"] * bool(lacking)
    parts += [f"also has {some(further)}"] * bool(further)
    found = f"{name}, which {' and '.join(parts)}"
    return TableError("TABLE", f"have the columns of {first} in every file", found)


def constant_response(name: str, value: object) -> TableError:
    """The error about a response with one value in all rows."""
    cure = "Check that --response names the right column."
    return TableError(f"response {name!r}", "vary", f"{value} in every row", cure)
