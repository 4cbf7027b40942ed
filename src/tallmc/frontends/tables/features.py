"""How a column of the table explains the response: as a number, 0/1, or a category.

A category with levels a, b, c has two columns of the design, `name[T.b]` and `name[T.c]`: 1 if the
row has this level. The first level is the baseline. Names are those of statsmodels and formulaic.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Literal

import numpy as np

from ...ingestion.errors import TableError, first_not_a_number, some
from ...ingestion.values import ColumnValues
from .columns import as_text, recode, without_unused_levels

MAX_LEVELS = 50
"""Most levels of a category that nobody asked for."""
MAX_NAMED_LEVELS = 1000
"""Most levels of a category that `categorical` or a formula names."""
_TOO_FEW_TO_TELL = 10
_CHECKED = 1000
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?|[+-]?\d{1,3}(\.\d*)?")


@dataclasses.dataclass(frozen=True)
class FeatureEncoding:
    """What a column of the table holds.

    **Arguments:**

    - `name`: the name of the column.
    - `kind`: what it holds.
    - `levels`: the levels of a category, the baseline first.

    >>> region = FeatureEncoding("region", "category", ("north", "south"))
    >>> region.values(ColumnValues("text", np.array([0, 0]), ("south",))).numbers.tolist()
    [1, 1]
    """

    name: str
    kind: Literal["number", "boolean", "category"]
    levels: tuple[str, ...] = ()

    def values(self, column: ColumnValues) -> ColumnValues:
        """The column as this kind; the codes of a category are those of `levels`.

        **Raises:** `TableError` if the column is of another kind or has other levels.
        """
        if self.kind == "category":
            if column.kind == "other":
                raise self._refusal("text", column.described)
            if column.levels == self.levels:
                return column
            return ColumnValues("text", recode(column, self.levels, self.name), self.levels)
        if column.kind not in ("number", "boolean"):
            example = first_not_a_number(column.levels[:_CHECKED]) if column.levels else ""
            found = f"text such as {example!r}" if column.kind == "text" else column.described
            raise self._refusal("numbers", found)
        if self.kind == "boolean" and column.kind == "number":
            other = ~np.isin(column.numbers, (0, 1)) & ~np.isnan(column.numbers)
            if other.any():
                row = int(other.argmax())
                raise self._refusal("0 and 1", f"{column.numbers[row]:g} in row {row + 1}")
        return column

    def _refusal(self, expected: str, found: str) -> TableError:
        return TableError(f"column {self.name!r}", f"hold {expected}, as in the fit", found)


def encode_features(
    columns: Mapping[str, ColumnValues], categorical: Collection[str], n_rows: int, *, named: bool
) -> tuple[list[FeatureEncoding], list[str]]:
    """Choose how columns are encoded, and the notes on it.

    **Arguments:**

    - `columns`: the columns, without missing values.
    - `categorical`: columns that are categories, whatever they hold.
    - `n_rows`: the number of rows.
    - `named`: whether the user named the columns in a formula.
    """
    chosen, notes = [], []
    for name, column in columns.items():
        if column.kind != "text" and name not in categorical:
            kind: Literal["number", "boolean"] = "boolean" if column.kind == "boolean" else "number"
            chosen.append(FeatureEncoding(name, kind))
            continue
        text = without_unused_levels(as_text(column))
        asked_for = name in categorical
        if not asked_for:
            _check_meant_as_text(name, text.levels)
        _check_levels(name, text.levels, n_rows, asked_for=asked_for or named)
        chosen.append(FeatureEncoding(name, "category", text.levels))
        notes.append(f"{name}: {len(text.levels)} levels, baseline {text.levels[0]!r}")
    _check_several_levels(chosen)
    return chosen, notes


def _check_meant_as_text(name: str, levels: tuple[str, ...]) -> None:
    """Raise if text seems to be numbers, with separators of thousands or a few other words."""
    some_levels = levels[:_CHECKED]
    if any("," in level for level in some_levels) and all(
        _THOUSANDS.fullmatch(level.strip()) for level in some_levels
    ):
        example = next(level for level in some_levels if "," in level)
        cure = (
            "Read it with pandas.read_csv(path, thousands=','), or pass "
            f"--categorical {name} (categorical) if it is text."
        )
        rule = "hold numbers without separators of thousands"
        raise TableError(f"column {name!r}", rule, f"text such as {example!r}", cure)
    numbers = [level for level in some_levels if _is_number(level)]
    if len(some_levels) > 2 and len(some_levels) / 2 <= len(numbers) < len(some_levels):
        example = first_not_a_number(some_levels)
        cure = (
            "Leave the entry empty where a number is missing, or pass "
            f"--categorical {name} (categorical) if it is text."
        )
        rule = "hold numbers or text, not both"
        raise TableError(f"column {name!r}", rule, f"{example!r} among numbers", cure)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_levels(name: str, levels: tuple[str, ...], n_rows: int, *, asked_for: bool) -> None:
    most = MAX_NAMED_LEVELS if asked_for else MAX_LEVELS
    distinct = len(levels) == n_rows >= _TOO_FEW_TO_TELL
    if len(levels) <= most and (asked_for or not distinct):
        return
    found = f"{len(levels)}, such as {levels[0]!r}"
    found += ", a different one in each row" if distinct else ""
    cure = "Leave it out with --exclude (exclude), join rare levels, "
    if asked_for:
        rule = f"have at most {most} levels"
        cure += f"or use a random intercept in a formula: (1 | {name})."
    else:
        rule = f"have at most {min(most, n_rows - 1)} levels, as it holds text"
        cure += f"or pass --categorical {name} (categorical) for up to {MAX_NAMED_LEVELS} levels."
    raise TableError(f"column {name!r}", rule, found, cure)


def _check_several_levels(features: Collection[FeatureEncoding]) -> None:
    single = [
        f"{feature.name} ({feature.levels[0]!r} in every row)"
        for feature in features
        if feature.kind == "category" and len(feature.levels) == 1
    ]
    if single:
        cure = "Leave them out with --exclude (exclude)."
        raise TableError("columns of text", "have several levels", some(single), cure)
