"""Split the text of a formula: the response, the common terms, and terms `(1 + x | group)`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ...core.errors import InvalidInput

FORMULA = "--formula (formula)"
_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "`\"'"
_NAME = re.compile(r"`([^`]+)`|([^\W\d]\w*)")


class FormulaText(NamedTuple):
    """The parts of a formula.

    `response` is what stands before `~`, if anything does. `common` has the terms that formulaic
    reads. `groups` has the terms and the column of each `(terms | group)`.
    """

    response: str | None
    common: str
    groups: tuple[tuple[str, str], ...]


def split_formula(text: str) -> FormulaText:
    """The parts of a formula.

    **Raises:** `InvalidInput` if it has several `~`, or bars outside of `(terms | group)`.

    >>> split_formula("y ~ age + (1 + age | region)")
    FormulaText(response='y', common='age', groups=(('1 + age', 'region'),))
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(FORMULA, "be text such as 'y ~ age + C(region)'", text)
    sides = list(_split(text, "~"))
    if len(sides) > 2:
        raise InvalidInput(FORMULA, "have one ~", text)
    response = _plain(sides[0]) if len(sides) == 2 else None
    common, groups = [], []
    for term in _split(sides[-1], "+"):
        inside = _within_brackets(term)
        bars = list(_split(inside, "|")) if inside is not None else [term]
        if len(bars) == 2:
            groups.append((bars[0], _group(bars[1], text)))
        elif len(bars) > 2 or len(list(_split(term, "|"))) > 1:
            cure = "Write y ~ x + (1 + x | group), with the brackets joined by +."
            raise InvalidInput(FORMULA, "have bars only in (terms | group)", text, cure)
        else:
            common.append(term)
    return FormulaText(response, " + ".join(common) or "1", tuple(groups))


def column_name(text: str) -> str | None:
    """The column that text names, with or without backquotes; None if it is an expression.

    >>> column_name("age"), column_name("`my age`"), column_name("log(age)")
    ('age', 'my age', None)
    """
    found = _NAME.fullmatch(text.strip())
    return (found[1] or found[2]) if found else None


def _plain(response: str) -> str:
    name = column_name(response)
    if name is None:
        cure = "Put the transformed response into a column of the table first."
        raise InvalidInput(FORMULA, "have the name of a column before ~", response, cure)
    return name


def _group(text: str, formula: str) -> str:
    name = column_name(text)
    if name is None:
        cure = f"Join columns into one of the table first; got {text!r} after the bar."
        raise InvalidInput(FORMULA, "have the name of a column after a bar", formula, cure)
    return name


def _within_brackets(text: str) -> str | None:
    """What is between the first and the last bracket, if they are a pair."""
    if not (text.startswith("(") and text.endswith(")")):
        return None
    depths = [depth for _, depth in _characters(text[:-1])]
    return text[1:-1] if min(depths) >= 1 else None


def _characters(text: str) -> Iterator[tuple[str, int]]:
    """Characters with the number of brackets around them; quoted ones count as within one more."""
    depth, quote = 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
            yield character, depth + 1
            continue
        quote = character if character in _QUOTES else ""
        depth += character in _OPENING
        depth -= character in _CLOSING
        yield character, depth + bool(quote)


def _split(text: str, mark: str) -> Iterator[str]:
    """The pieces between marks that are outside of brackets and quotes."""
    piece = ""
    for character, depth in _characters(text):
        if character == mark and depth == 0:
            yield piece.strip()
            piece = ""
        else:
            piece += character
    yield piece.strip()
