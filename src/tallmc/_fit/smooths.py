"""Smooth terms of a formula: s(age), s(age, k=20), s(hour, bs="cc"), s(lon, lat), s(x, by=g).

The text of a term is read, never evaluated. What a fit remembers of it are numbers: knots, and the
matrix that turns the basis into columns (`models/smooths.py`).
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._core.errors import InvalidInput
from .._ingestion.values import ColumnValues
from ..models.smooths import SmoothBasis
from .columns import FeatureEncoding, RawColumn

_FORMULA = "--formula (formula)"
_SMOOTH = re.compile(r"(?<![\w.])s\s*\(")
_DEFAULT_K, _DEFAULT_K_OF_TWO, _FEWEST, _FEWEST_OF_TWO = 10, 30, 4, 6
_MOST_K = 500
_MOST_ROWS = 50_000
"""Rows from which knots and the rotation of columns are taken."""
STRAIGHT, CONSTANT = "linear", "constant"


class SmoothText(NamedTuple):
    """A smooth term as it is written."""

    variables: tuple[str, ...]
    k: int | None = None
    bs: str | None = None
    by: str | None = None
    ends: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        return f"s({', '.join(self.variables)})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table that it needs."""
        return self.variables if self.by is None else (*self.variables, self.by)


def parse_smooth(term: str) -> SmoothText | None:
    """The smooth term that a text is; None if it has none, an error if it is not a plain one."""
    if _SMOOTH.search(re.sub(r"`[^`]*`", "", term)) is None:
        return None
    quoted: list[str] = []

    def placeholder(found: re.Match[str]) -> str:
        quoted.append(found[1])
        return f"_quoted_{len(quoted) - 1}_"

    def name(node: ast.AST) -> str:
        if not isinstance(node, ast.Name):
            raise ValueError
        found = re.fullmatch(r"_quoted_(\d+)_", node.id)
        return quoted[int(found[1])] if found else node.id

    cure = "Write s(x), s(x, k=20), s(x, bs='cc', ends=(0, 24)), s(x, y) or s(x, by=g)."
    try:
        call = ast.parse(re.sub(r"`([^`]+)`", placeholder, term.strip()), mode="eval").body
        if not isinstance(call, ast.Call) or getattr(call.func, "id", None) != "s":
            raise ValueError
        options: dict[str, Any] = {
            str(each.arg): name(each.value) if each.arg == "by" else ast.literal_eval(each.value)
            for each in call.keywords
        }
        found = SmoothText(tuple(map(name, call.args)), **options)
    except (SyntaxError, ValueError, TypeError):
        rule = "have smooth terms of columns alone, joined by +"
        raise InvalidInput(_FORMULA, rule, term.strip(), cure) from None
    _check(found, cure)
    return found


def _check(smooth: SmoothText, cure: str) -> None:
    n, name = len(smooth.variables), smooth.name
    if not 1 <= n <= 2 or len(set(smooth.variables)) < n:
        raise InvalidInput(_FORMULA, "have smooth terms of one or two columns", name, cure)
    kinds = ("cr", "cc") if n == 1 else ("tp",)
    if smooth.bs is not None and smooth.bs not in kinds:
        rule = f"be {' or '.join(kinds)} for {'one column' if n == 1 else 'two columns'}"
        raise InvalidInput(f"bs of {name}", rule, smooth.bs)
    least = _FEWEST if n == 1 else _FEWEST_OF_TWO
    is_whole = isinstance(smooth.k, int) and not isinstance(smooth.k, bool)
    if smooth.k is not None and not (is_whole and least <= smooth.k <= _MOST_K):
        raise InvalidInput(f"k of {name}", f"be an int in [{least}, {_MOST_K}]", smooth.k)
    if smooth.by in smooth.variables:
        raise InvalidInput(f"by of {name}", "name another column", smooth.by)
    if smooth.ends is None:
        return
    if smooth.bs != "cc":
        raise InvalidInput(f"ends of {name}", "be left out unless bs is 'cc'", smooth.ends)
    try:
        low, high = map(float, smooth.ends)
    except (TypeError, ValueError):
        low = high = 0.0
    if not low < high:
        rule = "be two numbers that are the same point, such as (0, 24)"
        raise InvalidInput(f"ends of {name}", rule, smooth.ends)


@dataclasses.dataclass(frozen=True)
class Smooth:
    """A smooth term, or the part of one for a level of `by`."""

    name: str
    variables: tuple[str, ...]
    basis: SmoothBasis
    by: str | None = None
    level: str | None = None

    @property
    def _is_product(self) -> bool:
        """Whether `by` is a number; then the constant counts too."""
        return self.by is not None and self.level is None

    @property
    def n_free(self) -> int:
        """Columns without a penalty, which come first."""
        return self.basis.n_free + self._is_product

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""
        straight = (STRAIGHT,) if len(self.variables) == 1 else self.variables
        free = ((CONSTANT,) if self._is_product else ()) + straight[: self.basis.n_free]
        wiggly = map(str, range(1, self.basis.n_columns - self.basis.n_free + 1))
        return tuple(f"{self.name}[{entry}]" for entry in (*free, *wiggly))

    def values(self, numbers: Sequence[Any], by: Any = None) -> Any:
        """Its columns, (..., columns); `by` is a number per row, or whether it has the level."""
        found = self.basis.columns(numbers)
        if by is None:
            return found
        parts = [found[..., :1] * 0 + 1, found] if self._is_product else [found]
        joined = (np if isinstance(found, np.ndarray) else jnp).concatenate(parts, axis=-1)
        return joined * by[..., None]

    def raw_columns(self, columns: Mapping[str, ColumnValues]) -> list[RawColumn]:
        """Its columns of the design, from columns of the table as `FeatureEncoding.values`."""
        numbers = [columns[name].numbers.astype(np.float64) for name in self.variables]
        by = None
        if self.by is not None:
            column = columns[self.by]
            by = column.numbers.astype(np.float64)
            if self.level is not None:
                by = (column.numbers == column.levels.index(self.level)).astype(np.float64)
        return [RawColumn(column) for column in np.ascontiguousarray(self.values(numbers, by).T)]


def make_smooths(
    texts: Sequence[SmoothText],
    features: Mapping[str, FeatureEncoding],
    numbers: Mapping[str, np.ndarray],
    ranges: Mapping[str, tuple[float, float, bool]],
) -> tuple[Smooth, ...]:
    """The smooths of a formula, from the numbers of some rows.

    `ranges` has the least and the largest number of each column over all rows, and whether all are
    whole.
    """
    found: dict[str, Smooth] = {}
    for text in texts:
        for name in text.variables:
            if features[name].kind != "number":
                rule = f"hold numbers to be in {text.name}"
                raise InvalidInput(f"column {name!r}", rule, features[name].kind)
        basis = _basis(text, np.column_stack([numbers[name] for name in text.variables]), ranges)
        plain = Smooth(text.name, text.variables, basis, text.by)
        parts = [plain]
        if text.by is not None:
            feature, name = features[text.by], f"{text.name}:{text.by}"
            parts = [dataclasses.replace(plain, name=name)]
            if feature.kind == "category":
                parts = [
                    dataclasses.replace(plain, name=f"{name}[{level}]", level=level)
                    for level in feature.levels
                ]
        for part in parts:
            if part.name in found:
                raise InvalidInput(_FORMULA, "have each smooth term once", part.name)
            found[part.name] = part
    return tuple(found.values())


def _basis(
    text: SmoothText, points: np.ndarray, ranges: Mapping[str, tuple[float, float, bool]]
) -> SmoothBasis:
    two = len(text.variables) == 2
    n_distinct = len(np.unique(points, axis=0))
    least = _FEWEST_OF_TWO if two else _FEWEST
    default = min(_DEFAULT_K_OF_TWO if two else _DEFAULT_K, n_distinct)
    k = default if text.k is None else text.k
    if n_distinct < max(k, least):
        rule = f"have at least {max(k, least)} different values for {text.name}"
        name = text.variables[0]
        cure = f"Use it as it is, or as C({name})." if n_distinct < least else "Choose a smaller k."
        parameter = f"column {name!r}"
        raise InvalidInput(parameter, rule, f"{n_distinct} of them", cure)
    if two:
        return SmoothBasis.of("tp", points, k, (0.0, 0.0))
    low, high, whole = ranges[text.variables[0]]
    kind = text.bs or "cr"
    if kind == "cc":
        # Hours 0 to 23 are a circle of 24 hours.
        low, high = text.ends or (low, high + whole)
        points = low + np.mod(points - low, high - low)
    return SmoothBasis.of(kind, points, k, (low, high))


def some_rows(n_rows: int) -> np.ndarray | slice:
    """Numbers of the rows from which knots are taken."""
    if n_rows <= _MOST_ROWS:
        return slice(None)
    return np.sort(np.random.default_rng(0).choice(n_rows, _MOST_ROWS, replace=False))


def smooths_of_table(
    texts: Sequence[SmoothText],
    features: Sequence[FeatureEncoding],
    columns: Mapping[str, ColumnValues],
    n_rows: int,
) -> tuple[Smooth, ...]:
    """The smooths of a formula from the columns of a table."""
    chosen, by_name = some_rows(n_rows), {feature.name: feature for feature in features}
    used = {name for text in texts for name in text.variables}
    numbers = {name: columns[name].numbers for name in used}
    ranges = {
        name: (float(of.min()), float(of.max()), bool((np.rint(of) == of).all()))
        for name, of in numbers.items()
    }
    some = {name: of[chosen].astype(np.float64) for name, of in numbers.items()}
    return make_smooths(texts, by_name, some, ranges)
