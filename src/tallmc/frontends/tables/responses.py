"""Responses: numbers, counts, two values of which one counts as 1, or classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from ...core.errors import InvalidInput
from ...ingestion.encoding import FALSE_AND_TRUE
from ...ingestion.errors import TableError, constant_response, some
from ...ingestion.values import ColumnValues
from .columns import as_text, recode, without_unused_levels
from .features import MAX_LEVELS

ResponseKind = Literal["number", "binary", "count", "positive", "classes", "ordered"]
_LEVEL = "--level (level)"


@dataclasses.dataclass(frozen=True)
class ResponseEncoding:
    """How the response becomes numbers.

    **Arguments:**

    - `name`: the name of the column.
    - `kind`: "number"; "binary" (0 and 1); "count" (0, 1, 2, …); "positive"; "classes" and
      "ordered" (codes of `levels`).
    - `levels`: the levels of a response that is not a number, in the order of their codes.
    - `one`: the level of a binary response that counts as 1.
    - `mean`, `sd`: the response is (value − mean)/sd.

    >>> from tallmc.frontends.tables import read_table
    >>> clicked = read_table({"clicked": ["yes", "no", "no"]}).columns["clicked"]
    >>> encoding, notes = encode_response("clicked", clicked, "binary", None)
    >>> encoding.values(clicked).tolist(), notes
    ([1.0, 0.0, 0.0], ["response clicked: 'yes' counts as 1, 'no' as 0"])
    """

    name: str
    kind: ResponseKind
    levels: tuple[str, ...] = ()
    one: str | None = None
    mean: float = 0.0
    sd: float = 1.0

    def values(self, column: ColumnValues) -> np.ndarray:
        """The response as numbers: float64, or int32 codes of classes.

        **Raises:** `TableError` for values of another kind.
        """
        if self.levels:
            codes = recode(column, self.levels, self.name)
            if self.one is None:
                return codes.astype(np.int32)
            return (codes == self.levels.index(self.one)).astype(np.float64)
        if column.kind not in ("number", "boolean"):
            example = column.levels[0] if column.levels else column.described
            cure = "Use family bernoulli, categorical or ordinal for a response of text."
            raise self._refusal("hold numbers", f"values such as {example!r}", cure)
        values = column.numbers.astype(np.float64)
        self._check_range(values)
        return (values - self.mean) / self.sd

    def _check_range(self, values: np.ndarray) -> None:
        if self.kind == "binary":
            bad, rule = ~np.isin(values, (0.0, 1.0)), "hold 0 and 1"
            cure = ""
        elif self.kind == "count":
            bad, rule = (values < 0) | (values != np.floor(values)), "hold counts (0, 1, 2, …)"
            cure = "Use family gaussian if the response is not a count."
        elif self.kind == "positive":
            bad, rule = values <= 0, "be positive"
            cure = "Use family gaussian if the response can be zero or negative."
        else:
            return
        if bad.any():
            row = int(bad.argmax())
            raise self._refusal(rule, f"{values[row]:g} in row {row + 1}", cure)

    def _refusal(self, rule: str, found: str, cure: str = "") -> TableError:
        return TableError(f"response {self.name!r}", rule, found, cure)


def encode_response(
    name: str, column: ColumnValues, kind: ResponseKind, level: str | Sequence[str] | None
) -> tuple[ResponseEncoding, list[str]]:
    """Choose how a response is encoded, and the notes on it.

    **Arguments:**

    - `name`: the name of the column.
    - `column`: the response, without missing values.
    - `kind`: what the family needs.
    - `level`: the level of a binary response that counts as 1, or the levels of classes in order.
    """
    if kind not in get_args(ResponseKind):
        kinds = ", ".join(get_args(ResponseKind))
        raise InvalidInput("response_kind", f"be one of {kinds}", kind)
    _check_varies(name, column)
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


def _check_varies(name: str, column: ColumnValues) -> None:
    first = column.numbers[0]
    if (column.numbers == first).all():
        value = column.levels[first] if column.kind == "text" else f"{first:g}"
        raise constant_response(name, value)


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
        one = _level_of_one((levels[0], levels[1]))
    else:
        found = f"{len(levels)} different values, {levels[0]} to {levels[-1]}"
        cure = f"Choose the one that counts as 1 with {_LEVEL}, or another family."
        raise TableError(f"response {name!r}", "hold two values, such as 0 and 1", found, cure)
    others = [other for other in levels if other != one]
    zeros = repr(others[0]) if len(others) == 1 else f"the {len(others)} others"
    note = f"response {name}: {one!r} counts as 1, {zeros} as 0"
    return ResponseEncoding(name, "binary", levels, one), [note]


def _level_of_one(levels: tuple[str, str]) -> str:
    """The one of two levels that means true, or else the last."""
    by_meaning = {level.strip().lower(): level for level in levels}
    for low, high in FALSE_AND_TRUE:
        if by_meaning.keys() == {low, high}:
            return by_meaning[high]
    return levels[1]


def _classes(
    name: str,
    column: ColumnValues,
    kind: Literal["classes", "ordered"],
    level: str | Sequence[str] | None,
) -> tuple[ResponseEncoding, list[str]]:
    levels = without_unused_levels(as_text(column)).levels
    if len(levels) > MAX_LEVELS:
        found = f"{len(levels)}, such as {levels[0]!r}"
        cure = "Join rare classes, or use family gaussian or poisson."
        raise TableError(f"response {name!r}", f"have at most {MAX_LEVELS} classes", found, cure)
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
        return ResponseEncoding(name, kind, levels), [
            f"response {name}: {' < '.join(levels)}{cure}"
        ]
    note = f"response {name}: {len(levels)} classes, baseline {levels[0]!r}"
    return ResponseEncoding(name, kind, levels), [note]


def _known_level(level: str, levels: tuple[str, ...]) -> str:
    if level not in levels:
        cure = f"The levels are: {some(levels)}."
        raise TableError(_LEVEL, "be a level of the response", level, cure)
    return level
