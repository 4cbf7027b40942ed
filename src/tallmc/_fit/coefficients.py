"""Coefficients in the units of the table, from positions in standardised units.

    x'_j = (x_j − m_j)/s_j,   y' = (y − m)/s:   β_j = s β'_j/s_j,   α = m + s (α' − Σ β'_j m_j/s_j)

The intercept of a regression with other links is the same with m = 0 and s = 1. Cut points shift
by Σ β'_j m_j/s_j. Variables have the names of Bambi: one variable per term, `sigma`, `1|group`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .._core.arrays import AbstractQuantities, Layout
from .._core.errors import InvalidInput
from .columns import INTERCEPT

_LEVEL = re.compile(r"\[(?:T\.)?([^\]]*)\]")


@dataclasses.dataclass(frozen=True)
class DesignColumns:
    """Columns of a design: their names, their terms, and how they were scaled."""

    names: tuple[str, ...]
    terms: Mapping[str, tuple[int, ...]]
    means: np.ndarray
    sds: np.ndarray
    wiggly: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    """The penalised columns of each smooth term, which share a scale."""

    @property
    def has_intercept(self) -> bool:
        return bool(self.names) and self.names[0] == INTERCEPT

    def in_units_of_table(
        self, scaled: np.ndarray, response_mean: float, response_sd: float
    ) -> np.ndarray:
        """Coefficients (..., c) of the columns as they are in the table."""
        found = scaled * (response_sd / self.sds)
        if self.has_intercept:
            shift = scaled[..., 1:] @ (self.means[1:] / self.sds[1:])
            found[..., 0] = response_mean + response_sd * (scaled[..., 0] - shift)
        return found


@dataclasses.dataclass(frozen=True)
class GroupScaling:
    """The columns of a term (1 + x | group), and the names of the groups."""

    name: str  # of its effects in the layout
    group: str
    levels: tuple[str, ...]
    columns: DesignColumns


def without_intercept(columns: DesignColumns) -> DesignColumns:
    """The columns without that of the intercept, which cut points replace."""
    if not columns.has_intercept:
        return columns
    terms, wiggly = (
        {
            term: tuple(place - 1 for place in places)
            for term, places in found.items()
            if term != INTERCEPT
        }
        for found in (columns.terms, columns.wiggly)
    )
    if not terms:
        raise InvalidInput("TABLE", "have a column besides the response", "none")
    means, sds = columns.means[1:], columns.sds[1:]
    return DesignColumns(columns.names[1:], terms, means, sds, wiggly)


class RememberedEffects:
    """Effects of groups in draws, each draw of which is computed once.

    A run is judged again and again while it grows, and then in its report and summary.
    """

    def __init__(self, function: Callable[[np.ndarray], np.ndarray]):
        self.function = function
        self.known: tuple[np.ndarray, np.ndarray] | None = None

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """The effects in positions (chains, draws, d)."""
        count, parts = 0, []
        if self.known is not None and len(self.known[0]) == len(positions):
            before, effects = self.known
            count = min(before.shape[1], positions.shape[1])
            if np.array_equal(before[:, :count], positions[:, :count]):
                parts = [effects[:, :count]]
            else:
                count = 0
        if not parts or count < positions.shape[1]:
            parts.append(self.function(positions[:, count:]))
            self.known = positions.copy(), np.concatenate(parts, axis=1)
        return np.concatenate(parts, axis=1)


class Coefficients(AbstractQuantities):
    """The coefficients of a regression, term by term."""

    def __init__(
        self,
        layout: Layout,
        columns: DesignColumns,
        groups: Sequence[GroupScaling] = (),
        classes: Sequence[str] | None = None,
        response: str = "class",
        response_mean: float = 0.0,
        response_sd: float = 1.0,
        *,
        standardised: bool = False,
        effects: Callable[[np.ndarray], np.ndarray] | None = None,
    ):
        self.layout, self.columns, self.groups = layout, columns, tuple(groups)
        self.effects = None
        self.response_mean, self.response_sd = response_mean, response_sd
        self.response = response
        self.classes = None if classes is None else tuple(classes)
        self.standardised, self.structure = standardised, None
        self.dims, self.coords = {}, {}
        if standardised:
            self.response_mean, self.response_sd = 0.0, 1.0
            self.columns = _unscaled(columns)
            self.groups = tuple(
                dataclasses.replace(group, columns=_unscaled(group.columns)) for group in groups
            )
        if effects is not None:  # the shapes of the example, without a compiled program
            (group,) = groups
            blank = np.zeros((1, 1, len(group.levels), len(group.columns.names)))
            self.effects = lambda positions: blank
        example = self.of(np.zeros((1, 1, layout.dim)))
        self.effects = None if effects is None else RememberedEffects(effects)
        self.reads_rows = effects is not None
        self.shapes = {name: values.shape[2:] for name, values in example.items()}

    def of(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        parts = self.layout.split(np.asarray(positions, np.float64))
        if self.effects is not None:
            parts[self.groups[0].name] = self.effects(positions)
        found = self._common(parts.pop("beta"), parts)
        others = [self._effects(group, parts) for group in self.groups]
        others += [self._other(name, values) for name, values in parts.items()]
        for each in others:
            taken = sorted(set(found) & set(each))
            if taken:
                rule = f"have a name other than {taken[0]!r}, which a parameter of the model has"
                cure = "Rename the column, or the term of the formula that occurs twice."
                raise InvalidInput("columns", rule, taken[0], cure)
            found |= each
        return found

    def coordinate_names(self, layout: Layout) -> list[str]:
        """Coefficients are called as in the summary; those of a position are standardised."""
        names = super().coordinate_names(layout)
        if self.classes is not None:
            return names
        start = sum(math.prod(layout.shapes[k]) for k in range(layout.names.index("beta")))
        for term, places in self.columns.terms.items():
            for place in places:
                column = self.columns.names[place]
                is_one = len(places) == 1 and column == term
                names[start + place] = term if is_one else f"{term}[{_entry(term, column)}]"
        return names

    def _common(self, beta: np.ndarray, parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One variable per term; cut points are shifted to the columns of the table."""
        columns = self.columns
        if self.classes is not None:  # (chains, draws, columns, classes)
            scaled = np.moveaxis(beta, 2, -1).copy()
            beta = np.moveaxis(columns.in_units_of_table(scaled, 0.0, 1.0), -1, 2)
        else:
            if "cut_points" in parts and not self.standardised:
                free, shift = parts["cut_points"], beta @ (columns.means / columns.sds)
                # The first is free, the others are logarithms of differences.
                moved = [free[..., :1] + shift[..., None], free[..., 1:]]
                parts["cut_points"] = np.concatenate(moved, axis=-1)
            if "log_hazards" in parts:  # at zero columns, and per unit of time
                shift = self.response_mean
                if not self.standardised:
                    shift = shift + (beta @ (columns.means / columns.sds))[..., None]
                parts["log_hazards"] = parts["log_hazards"] - shift
            beta = columns.in_units_of_table(beta.copy(), self.response_mean, self.response_sd)
        found = {}
        for term, places in columns.terms.items():
            names = [columns.names[place] for place in places]
            values = beta[:, :, list(places)]
            if names == [term]:
                found[term] = values[:, :, 0]
                self._name(term, ())
            else:
                found[term] = values
                entries = tuple(_entry(term, name) for name in names)
                self._name(term, ((f"{term}_dim", entries),))
        return found

    def _name(self, variable: str, dims: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
        if self.classes is not None:
            dims = (*dims, (f"{self.response}_dim", self.classes))
        if dims:
            self.dims[variable] = tuple(name for name, _ in dims)
            self.coords |= dict(dims)

    def _effects(self, group: GroupScaling, parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        name, found = group.name, {}
        columns = group.columns
        dim = f"{group.group}__factor_dim"  # as in Bambi; `{term}_dim` has the levels of a term
        # The prior belongs to the intercept at the means of the columns.
        sds = np.exp(parts.pop(f"log sd of {name}")) * self.response_sd / columns.sds
        effects = parts.pop(name, None)
        if effects is not None:
            effects = columns.in_units_of_table(effects.copy(), 0.0, self.response_sd)
        terms = ["1" if column == INTERCEPT else column for column in columns.names]
        for place, column in enumerate(terms):
            term = f"{column}|{group.group}"
            if effects is not None:
                found[term] = effects[..., place]
                self.dims[term], self.coords[dim] = (dim,), group.levels
            found[f"{term}_sigma"] = sds[..., place]
        free = parts.pop(f"correlations of {name}", None)
        if free is not None:
            pairs, term = np.tril_indices(len(terms), -1), f"{group.group}_correlation"
            found[term] = _correlations(free, len(terms))[..., pairs[0], pairs[1]]
            between = tuple(f"{terms[j]}, {terms[i]}" for i, j in zip(*pairs, strict=True))
            self.dims[term], self.coords[f"{term}_dim"] = (f"{term}_dim",), between
        return found

    def _other(self, name: str, values: np.ndarray) -> dict[str, np.ndarray]:
        shown, function = _SHARED.get(name, (name, None))
        if function is None:
            return {shown: values}
        found = function(values)
        return {shown: found * self.response_sd if shown == "sigma" else found}


def _entry(term: str, name: str) -> str:
    """The levels of a column of a term."""
    levels = name.removeprefix(term) if name.startswith(f"{term}[") else name
    return ", ".join(_LEVEL.findall(levels)) or name


def _unscaled(columns: DesignColumns) -> DesignColumns:
    ones = np.ones(len(columns.names))
    return dataclasses.replace(columns, means=0 * ones, sds=ones)


def _correlations(free: np.ndarray, size: int) -> np.ndarray:
    """Correlation matrices from the free forms of partial correlations (`models/groups.py`)."""
    partial = np.zeros((*free.shape[:-1], size, size))
    partial[..., *np.tril_indices(size, -1)] = np.tanh(free)
    left = np.cumprod(np.sqrt(1 - partial**2), axis=-1)
    before = np.concatenate([np.ones_like(left[..., :1]), left[..., :-1]], axis=-1)
    root = np.where(np.eye(size, dtype=bool), before, partial * before)
    return root @ np.swapaxes(root, -1, -2)


def _pairs(free: np.ndarray) -> np.ndarray:
    """The correlations below the diagonal."""
    size = (1 + math.isqrt(1 + 8 * free.shape[-1])) // 2
    return _correlations(free, size)[..., *np.tril_indices(size, -1)]


def _expit(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def _shares(logs: np.ndarray) -> np.ndarray:
    sizes = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return sizes / sizes.sum(axis=-1, keepdims=True)


def _cuts(free: np.ndarray) -> np.ndarray:
    return np.cumsum(np.concatenate([free[..., :1], np.exp(free[..., 1:])], axis=-1), axis=-1)


_SHARED: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "log_scale": ("sigma", np.exp),
    "log_degrees": ("nu", np.exp),
    "log_shape": ("alpha", np.exp),
    "log_dispersion": ("alpha", lambda values: np.exp(-values)),
    "cut_points": ("threshold", _cuts),
    "logit_zero_inflation": ("zi", _expit),
    "logit_hurdle": ("hu", _expit),
    "log_precision": ("kappa", np.exp),
    "log_hazards": ("hazard", np.exp),
    "log_phi": ("phi", np.exp),
    "logit_power": ("power", lambda values: 1 + _expit(values)),
    "log local scales": ("horseshoe_local", np.exp),
    "log global scale": ("horseshoe_global", np.exp),
    "log slab variance": ("horseshoe_slab", lambda values: np.exp(0.5 * values)),
    "imputation_correlations": ("imputation_correlations", _pairs),
    "log imputation sds": ("imputation_sds", np.exp),
    "log shares": ("r2d2_shares", _shares),
    "logit R2": ("r2d2_r2", _expit),
}
"""How shared and hyper-parameters are called and computed from their unconstrained forms."""
