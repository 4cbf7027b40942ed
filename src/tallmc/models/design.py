"""The rows of a regression: designs and their products, checks of responses and prior variances."""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int, Integer

from .._core.arrays import AbstractLinearMap, Matrix, check_numeric, dot, to_floats
from .._core.errors import InvalidInput
from .._rows.access import AbstractRows, PerRow
from .._rows.manifest import RowManifest
from .._rows.resident import ResidentRows
from .._rows.sharded import ShardedRows
from .priors import NormalPrior

_EXACT = lax.Precision.HIGHEST
_PIECE = 128

# Columns as codes. The columns of a factor depend on its level only:
#
#     x_ij = E_{c_i j},   Xβ = (Eβ)_c,   Xᵀr = Eᵀ Σ_i r_i e_{c_i},   XᵀWX = EᵀNE
#
# with the values E of the columns at each level, here standardised indicators, and the
# cross-tabulation N. A row has one code per factor instead of one number per column. Products with
# coefficients are gathers, and gradients are sums per level.


class CodedColumns(eqx.Module):
    """A design matrix as rows hold it: columns of numbers, and one code per factor."""

    dense: Float[Any, "n c"]
    codes: Integer[Any, "n k"]
    n_levels: tuple[int, ...] = eqx.field(static=True)
    """Of each factor."""
    places: tuple[int, ...] = eqx.field(static=True)
    """The place in the design of each column: those of numbers, then those of each factor."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], len(self.places)

    @property
    def dtype(self) -> Any:
        return self.dense.dtype

    def without_first(self) -> CodedColumns:
        """The design without its first column, which must be one of numbers."""
        dense = np.delete(self.dense, self.places.index(0), axis=1)
        places = tuple(place - 1 for place in self.places if place)
        return CodedColumns(dense, self.codes, self.n_levels, places)

    def matrix(self, values: LevelValues) -> np.ndarray:
        """The whole matrix, on the host."""
        table, starts = np.asarray(values), np.cumsum([0, *self.n_levels[:-1]])
        coded = sum(table[codes] for codes in (np.asarray(self.codes).astype(int) + starts).T)
        matrix = np.empty(self.shape, self.dtype)
        matrix[:, list(self.places)] = np.concatenate([self.dense, coded], axis=1)
        return matrix


LevelValues = Float[Array, "l c"] | None
"""E of all factors, a block for each. Models hold it, not rows: programs serve other data too."""


_MOST_TOGETHER = 512
"""Combinations of levels in one table: with 64 columns it fits in the cache of a core."""


def _together(n_levels: Sequence[int], most: int) -> list[list[int]]:
    """Factors in as few lists as a greedy choice finds, with at most so many combinations each."""
    found: list[list[int]] = []
    for k in sorted(range(len(n_levels)), key=lambda k: -n_levels[k]):
        sizes = [math.prod(n_levels[j] for j in (*factors, k)) for factors in found]
        place = next((at for at, size in enumerate(sizes) if size <= most), None)
        if place is None:
            found.append([k])
        else:
            found[place].append(k)
    return found


class Levels(eqx.Module):
    """The columns of all factors of a design. Their levels are numbered through."""

    codes: Integer[Array, "n k"]
    values: Float[Array, "l c"]
    n_levels: tuple[int, ...] = eqx.field(static=True)

    @property
    def n_columns(self) -> int:
        return self.values.shape[1]

    @property
    def of_rows(self) -> Int[Array, "n k"]:
        """The level of each row and factor."""
        starts = np.cumsum([0, *self.n_levels[:-1]]).astype(np.int32)
        return self.codes.astype(jnp.int32) + starts

    def times(self, m: Float[Array, "c ..."]) -> Float[Array, "n ..."]:
        """X m: the sum of what the levels of a row contribute."""
        tables = jnp.split(dot(self.values, m), np.cumsum(self.n_levels[:-1]).tolist())
        most, parts = min(_MOST_TOGETHER, len(self.codes) // 8), []
        for first, *others in _together(self.n_levels, most):
            # A gather costs a nanosecond per number, so factors share one: its table has the sums
            # of all combinations of their levels. XLA would compute both again for every number.
            table, codes = tables[first], self.codes[:, first].astype(jnp.int32)
            for k in others:
                sums = table[:, None] + tables[k]
                table = sums.reshape(-1, *m.shape[1:])
                codes = codes * self.n_levels[k] + self.codes[:, k].astype(jnp.int32)
            table, codes = lax.optimization_barrier((table, codes))
            parts.append(table.at[codes].get(mode="promise_in_bounds"))
        return sum(parts[1:], parts[0])

    def sums(self, r: Float[Array, "n ..."]) -> Float[Array, "c ..."]:
        """Xᵀr."""
        each = jnp.broadcast_to(r[:, None], (*self.codes.shape, *r.shape[1:]))
        zero = jnp.zeros((len(self.values), *r.shape[1:]), r.dtype)
        return dot(self.values.T, zero.at[self.of_rows].add(each, mode="promise_in_bounds"))

    def _gram(self, weights: PerRow) -> Matrix:
        """XᵀWX: cross-tabulations of all pairs of factors."""
        levels, count = self.of_rows, len(self.values)
        one, two = np.triu_indices(len(self.n_levels))
        pairs = levels[:, one] * count + levels[:, two]
        each = jnp.broadcast_to(weights[:, None], pairs.shape)
        cells = jnp.zeros(count**2, weights.dtype).at[pairs].add(each, mode="promise_in_bounds")
        upper = cells.reshape(count, count)
        whole = upper + upper.T - jnp.diag(jnp.diagonal(upper))
        return dot(self.values.T, dot(whole, self.values))

    def gram_with(self, term: Levels | GroupTerm, weights: PerRow) -> Float[Array, "c e"]:
        """XᵀWY, with Y the columns of a group term, or these columns."""
        if isinstance(term, Levels):
            return self._gram(weights)
        values = weights[:, None] * term.columns
        each = jnp.broadcast_to(values[:, None], (*self.codes.shape, values.shape[1]))
        cells = jnp.zeros((len(self.values), term.n_groups, values.shape[1]), weights.dtype)
        for codes, sign in term.members:
            places = self.of_rows, codes[:, None]
            cells = cells.at[places].add(sign * each, mode="promise_in_bounds")
        return dot(self.values.T, cells.reshape(len(self.values), -1))

    def squared(self) -> Levels:
        return Levels(self.codes, self.values**2, self.n_levels)


class GroupTerm(eqx.Module):
    """Columns whose coefficients differ between groups, as in (1 + x | group)."""

    codes: Integer[Array, "n ..."]
    """The group of each row; two for (1 | a - b), the effect of one less that of the other."""
    columns: Float[Array, "n r"]
    """The r columns, 1 for an intercept."""
    n_groups: int = eqx.field(static=True)
    has_new: bool = eqx.field(static=True, default=False)
    """Whether codes from `n_groups` on occur: groups that the fit has not seen."""
    signs: tuple[int, ...] = eqx.field(static=True, default=(1, -1))
    """The signs of the effects, one for each group of a row."""

    @property
    def members(self) -> list[tuple[Integer[Array, " n"], int]]:
        """The groups of each row, and the signs of their effects."""
        if self.codes.ndim == 1:
            return [(self.codes, 1)]
        return [(self.codes[:, k], sign) for k, sign in enumerate(self.signs)]

    @property
    def n_columns(self) -> int:
        """Columns of the design matrix: the r columns of a row stand at the place of its group."""
        return self.n_groups * self.columns.shape[-1]

    def times(self, m: Float[Array, "c ..."]) -> Float[Array, "n ..."]:
        """X m."""
        table = m.reshape(self.n_groups, self.columns.shape[1], *m.shape[1:])
        first, *others = (
            sign * table.at[codes].get(mode="promise_in_bounds") for codes, sign in self.members
        )
        return jnp.sum(_each(self.columns, sum(others, first)), axis=1)

    def sums(self, r: Float[Array, "n ..."]) -> Float[Array, "c ..."]:
        """Xᵀr."""
        found = self.per_group(_each(self.columns, r[:, None]))
        return found.reshape(self.n_columns, *r.shape[1:])

    def gram_with(self, other: Levels | GroupTerm, weights: PerRow) -> Float[Array, "c e"]:
        """XᵀWY, with Y the columns of another group term or of the same."""
        assert isinstance(other, GroupTerm), "the factors come first"
        values = weights[:, None, None] * self.columns[:, :, None] * other.columns[:, None, :]
        cells = jnp.zeros((self.n_groups * other.n_groups, *values.shape[1:]), values.dtype)
        for one, sign in self.members:
            for two, other_sign in other.members:
                pairs = one.astype(jnp.int32) * other.n_groups + two
                cells = cells.at[pairs].add(sign * other_sign * values, mode="promise_in_bounds")
        cells = cells.reshape(self.n_groups, other.n_groups, *values.shape[1:])
        return cells.transpose(0, 2, 1, 3).reshape(self.n_columns, other.n_columns)

    def squared(self) -> GroupTerm:
        # The two groups of a row differ.
        return GroupTerm(self.codes, self.columns**2, self.n_groups, signs=(1, 1))

    def gram_within(self, weights: PerRow) -> Float[Array, "g r r"]:
        """The blocks of XᵀWX that belong to one group each."""
        products = self.columns[:, :, None] * self.columns[:, None, :]
        return self.squared().per_group(weights[:, None, None] * products)

    def per_group(self, values: Float[Array, "n ..."]) -> Float[Array, "g ..."]:
        """Sums over the rows of each group."""
        total = jnp.zeros((self.n_groups, *values.shape[1:]), values.dtype)
        for codes, sign in self.members:
            total = total.at[codes].add(sign * values, mode="promise_in_bounds")
        return total


class Columns(eqx.Module):
    """The columns of a design and the products that models need; without factors, a matrix."""

    dense: Float[Array, "n c"]
    factors: tuple[Levels | GroupTerm, ...] = ()
    places: tuple[int, ...] | None = eqx.field(static=True, default=None)
    """The place of each column in a position, if they are in another order."""

    @property
    def shape(self) -> tuple[int, int]:
        n_coded = sum(factor.n_columns for factor in self.factors)
        return self.dense.shape[0], self.dense.shape[1] + n_coded

    def __matmul__(self, m: Float[Array, "d ..."]) -> Float[Array, "n ..."]:
        """X m, for a vector or a matrix."""
        if not self.factors:
            return dot(self.dense, m)
        of_dense, *others = self._parts(m)
        total = dot(self.dense, of_dense)
        for factor, part in zip(self.factors, others, strict=True):
            total = total + factor.times(part)
        return total

    def sums(self, r: Float[Array, "n ..."]) -> Float[Array, "d ..."]:
        """Xᵀr, for a vector or a matrix."""
        if not self.factors:
            return dot(r, self.dense) if r.ndim == 1 else dot(self.dense.T, r)
        return self._joined([dot(self.dense.T, r), *(factor.sums(r) for factor in self.factors)])

    def gram(self, weights: PerRow) -> Matrix:
        """XᵀWX."""
        scaled = self.dense * weights[:, None]
        if not self.factors:
            return dot(scaled.T, self.dense)
        n_dense = self.dense.shape[1]
        # Sums over pieces are more accurate. Cross-tabulations add numbers of one sign.
        both = jnp.concatenate([scaled, self.dense], axis=1)
        pieces = jnp.pad(both, ((0, -len(weights) % _PIECE), (0, 0)))
        pieces = pieces.reshape(len(pieces) // _PIECE, _PIECE, 2 * n_dense)
        products = jnp.einsum(
            "pni,pnj->pij", pieces[..., :n_dense], pieces[..., n_dense:], precision=_EXACT
        )
        parts = self.factors
        blocks = [[jnp.sum(products, axis=0), *(part.sums(scaled).T for part in parts)]]
        for k, part in enumerate(parts):
            row = [blocks[j][k + 1].T for j in range(k + 1)]
            blocks.append([*row, *(part.gram_with(other, weights) for other in parts[k:])])
        whole = jnp.block(blocks)
        return self._joined([self._joined([whole]).T]).T

    def gram_within_groups(self, weights: PerRow) -> Float[Array, " b"]:
        """The blocks of XᵀWX of each group of each group term, flat."""
        terms = (factor for factor in self.factors if isinstance(factor, GroupTerm))
        return jnp.concatenate([term.gram_within(weights).ravel() for term in terms])

    def squared(self) -> Columns:
        """The columns with squares in place of their values."""
        squares = tuple(factor.squared() for factor in self.factors)
        return Columns(self.dense**2, squares, self.places)

    def pulled(self, metric: AbstractLinearMap) -> Float[Array, "n e"]:
        """X C: the rows in the coordinates of a metric."""
        if not self.factors:
            return metric.pull(self.dense)
        return self @ metric.matrix(self.shape[1], self.dense.dtype)

    def norms(self) -> PerRow:
        """‖x_i‖."""
        if not self.factors:
            return jnp.linalg.norm(self.dense, axis=1)
        return jnp.sqrt(self.squared() @ jnp.ones(self.shape[1], self.dense.dtype))

    def matrix(self) -> Float[Array, "n d"]:
        """The matrix itself."""
        return self @ jnp.eye(self.shape[1], dtype=self.dense.dtype) if self.factors else self.dense

    def _parts(self, m: Float[Array, "d ..."]) -> list[Float[Array, "_ ..."]]:
        """The coefficients of the columns of numbers, and of each factor."""
        if self.places is not None:
            m = m[np.asarray(self.places)]
        sizes = [self.dense.shape[1], *(factor.n_columns for factor in self.factors)]
        return jnp.split(m, np.cumsum(sizes)[:-1])

    def _joined(self, parts: Sequence[Float[Array, "_ ..."]]) -> Float[Array, "d ..."]:
        """The inverse of `_parts`."""
        m = jnp.concatenate(parts) if len(parts) > 1 else parts[0]
        return m if self.places is None else m[np.argsort(self.places)]


def _each(values: Array, of: Array) -> Array:
    """Products, with values repeated along the further axes of the other array."""
    return values.reshape(*values.shape, *[1] * (of.ndim - values.ndim)) * of


# The rows of a regression: a row of the design matrix, a response, an offset and a weight.
#
#     z_i = x_iᵀβ + o_i,   f_i = w_i f(z_i; y_i)
#
# A weight counts a row w_i times. Most regressions have neither offsets nor weights.


class Observations(NamedTuple):
    """Rows of a regression."""

    x: Any
    """A matrix, (n, d), or `CodedColumns`."""
    y: PerRow
    """A number per row; (n, 3) for survival times: log times of entry and of both limits."""
    offset: PerRow | None = None
    weight: PerRow | None = None


class GroupedObservations(eqx.Module):
    """Rows of a regression with group terms."""

    fixed: Float[Array, "n c"] | CodedColumns
    y: PerRow
    offset: PerRow | None
    weight: PerRow | None
    terms: tuple[GroupTerm, ...]


RegressionRows = Observations | GroupedObservations


def columns_of(block: RegressionRows, values: LevelValues = None) -> Columns:
    """The columns of a block: the common ones, then those of each group term."""
    if isinstance(block, GroupedObservations):
        x, terms = block.fixed, block.terms
    else:
        x, terms = block.x, ()
    if not isinstance(x, CodedColumns):
        return Columns(x, terms)
    assert values is not None, "the model of rows with codes has the values of their levels"
    n_common = len(x.places)
    places = (*x.places, *range(n_common, n_common + sum(term.n_columns for term in terms)))
    in_order = places == tuple(range(len(places)))
    levels = Levels(x.codes, values, x.n_levels)
    return Columns(x.dense, (levels, *terms), None if in_order else places)


def matrix_of(x: Any, values: LevelValues) -> np.ndarray:
    """The matrix of a design as rows hold it, on the host."""
    return x.matrix(values) if isinstance(x, CodedColumns) else np.asarray(x)


def column_sds(x: np.ndarray | CodedColumns, values: LevelValues) -> np.ndarray:
    """The standard deviations of the columns of a design on the host, in float64."""
    if not isinstance(x, CodedColumns):
        return x.std(axis=0, dtype=np.float64)
    counts = [
        np.bincount(codes, minlength=n) for codes, n in zip(x.codes.T, x.n_levels, strict=True)
    ]
    shares, table = np.concatenate(counts) / len(x.codes), np.asarray(values, np.float64)
    coded = np.sqrt(np.maximum(shares @ table**2 - (shares @ table) ** 2, 0))
    return np.append(x.dense.std(axis=0, dtype=np.float64), coded)[np.argsort(x.places)]


# Columns of a design over a row store. A line of it has numbers, and codes of categories.


class StoredCode(NamedTuple):
    """The level of a category in lines of a row store."""

    places: tuple[int, ...]
    """The column of codes. Stores of former versions have one column per level but the first."""
    n_levels: int
    is_code: bool = True

    def of(self, lines: Any) -> Any:
        if self.is_code:
            return lines[..., self.places[0]].astype(np.int32)
        has_level = lines[..., list(self.places)] > 0
        return (has_level * np.arange(1, self.n_levels, dtype=np.int32)).sum(-1, dtype=np.int32)


class Indicator(NamedTuple):
    """1 in rows with a level of a category, 0 in others."""

    code: StoredCode
    level: int

    def of(self, lines: Any) -> Any:
        return (self.code.of(lines) == self.level).astype(lines.dtype)


class StoredNumber(NamedTuple):
    """A number as it was in the table: value · sd + mean."""

    place: int
    mean: float = 0.0
    sd: float = 1.0

    def of(self, lines: Any) -> Any:
        return lines[..., self.place] * self.sd + self.mean


class ProductColumn(NamedTuple):
    """A column of a design: (Π_j value_j − shift)/scale."""

    factors: tuple[StoredNumber | Indicator, ...]
    shift: float
    scale: float

    @property
    def n_columns(self) -> int:
        return 1

    @property
    def place(self) -> int | None:
        """The place in the row store of a column that is there as it is."""
        first = self.factors[0] if len(self.factors) == 1 else None
        if isinstance(first, StoredNumber) and (self.shift, self.scale) == first[1:]:
            return first.place
        return None

    def of(self, lines: Any) -> Any:
        product = lines[..., 0] * 0 + 1
        for factor in self.factors:
            product = product * factor.of(lines)
        return (product - self.shift) / self.scale


class StoredFactor(NamedTuple):
    """Indicators of levels of a category, or of combinations of levels: (0 or 1 − shift)/scale."""

    parts: tuple[StoredCode, ...]
    levels: tuple[int, ...] = ()
    """The level that each column indicates; combinations are numbered through."""
    shifts: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()

    @property
    def n_columns(self) -> int:
        return len(self.levels)

    @property
    def n_levels(self) -> int:
        return math.prod(part.n_levels for part in self.parts)

    def values(self) -> Float[np.ndarray, "l c"]:
        """The columns at each level, in float64."""
        indicators = np.equal.outer(np.arange(self.n_levels), self.levels)
        return (indicators - np.array(self.shifts)) / np.array(self.scales)

    def code(self, lines: Any) -> Any:
        found = self.parts[0].of(lines)
        for part in self.parts[1:]:
            found = found * part.n_levels + part.of(lines)
        return found

    def of(self, lines: Any) -> Any:
        where = jnp.where if isinstance(lines, jax.Array) else np.where
        shifts, scales = np.array(self.shifts), np.array(self.scales)
        high, low = (((one - shifts) / scales).astype(lines.dtype) for one in (1, 0))
        return where(self.code(lines)[..., None] == np.array(self.levels), high, low)


FEWEST_CODED, FEWEST_NUMBERS = 3, 2**22
"""Columns of a factor from which on it is stored as codes, and numbers that codes must replace. The
programs for codes take longer to compile, by 3 to 5 CPU seconds for five factors."""


def values_of_levels(tables: Sequence[np.ndarray], dtype: Any) -> LevelValues:
    """The values of the columns of several factors at each level, a block for each."""
    values = np.zeros(np.sum([table.shape for table in tables], axis=0))
    row, column = 0, 0
    for table in tables:
        values[row : row + table.shape[0], column : column + table.shape[1]] = table
        row, column = row + table.shape[0], column + table.shape[1]
    return jnp.asarray(values, dtype)


@dataclasses.dataclass(frozen=True)
class ObservationsOf:
    """Shows lines of a row store as observations, with the response (value − shift)/scale."""

    features: tuple[Any, ...]
    """The columns of the design matrix, by number or as objects that compute one or several of
    them, such as `ProductColumn` and `StoredFactor`."""
    response: int
    shift: float = 0.0
    scale: float = 1.0
    weight: int | None = None
    offset: int | None = None
    times: bool = False
    """Whether the response is a survival time, shown as three log times less the shift."""
    event: int | None = None
    """The column that says whether the time is that of the event; None if all are."""
    entry: int | None = None
    """The column of the times from which on rows were seen; None for 0."""
    upper: int | None = None
    """The column of the times up to which the event happened, after the response."""
    factors: tuple[StoredFactor, ...] = ()
    """Factors that are shown as codes."""
    places: tuple[int, ...] = ()
    """As in `CodedColumns`, if there are such factors."""

    def with_codes(self, n_rows: int, dtype: Any) -> tuple[ObservationsOf, LevelValues]:
        """The same columns with wide factors as codes, and the values of these at each level."""
        wide = [of for of in self.features if _is_wide(of)]
        if n_rows * sum(of.n_columns for of in wide) < FEWEST_NUMBERS or not wide:
            return self, None
        sizes = [1 if isinstance(of, int) else of.n_columns for of in self.features]
        starts = np.cumsum([0, *sizes])
        order = sorted(range(len(sizes)), key=lambda k: _is_wide(self.features[k]))
        places = [place for k in order for place in range(starts[k], starts[k + 1])]
        found = dataclasses.replace(
            self,
            features=tuple(of for of in self.features if not _is_wide(of)),
            factors=tuple(StoredFactor(of.parts) for of in wide),
            places=tuple(map(int, places)),
        )
        return found, values_of_levels([of.values() for of in wide], dtype)

    def __call__(self, lines: Any) -> Observations:
        y = lines[..., self.response]
        is_scaled = self.shift != 0 or self.scale != 1
        if self.times:
            y, is_scaled = self._log_times(lines), False
        return Observations(
            self._columns(lines),
            (y - self.shift) / self.scale if is_scaled else y,
            None if self.offset is None else lines[..., self.offset] / self.scale,
            None if self.weight is None else lines[..., self.weight],
        )

    def _log_times(self, lines: Any) -> Any:
        of = jnp if isinstance(lines, jax.Array) else np
        with np.errstate(divide="ignore"):  # the log of time 0
            entry, time, upper = (
                None if place is None else of.log(lines[..., place]) - self.shift
                for place in (self.entry, self.response, self.upper)
            )
        if entry is None:
            entry = of.full_like(time, -np.inf)
        if upper is None:
            event = True if self.event is None else lines[..., self.event] > 0
            upper = of.where(event, time, np.inf)
        return of.stack([entry, time, upper], axis=-1)

    def _columns(self, lines: Any) -> Any:
        of = jnp if isinstance(lines, jax.Array) else np
        parts = []
        for is_place, run in itertools.groupby(self.features, lambda each: isinstance(each, int)):
            if is_place:
                parts.append(_side_by_side(lines, list(run)))
            else:
                parts += [each.of(lines).reshape(*lines.shape[:-1], -1) for each in run]
        dense = parts[0] if len(parts) == 1 else of.concatenate([lines[..., :0], *parts], axis=-1)
        if not self.factors:
            return dense
        codes = of.stack([factor.code(lines) for factor in self.factors], axis=-1)
        n_levels = tuple(factor.n_levels for factor in self.factors)
        return CodedColumns(dense, codes, n_levels, self.places)


def _is_wide(feature: Any) -> bool:
    return isinstance(feature, StoredFactor) and feature.n_columns >= FEWEST_CODED


def _side_by_side(lines: Any, places: list[int]) -> Any:
    first, last = places[0], places[-1]
    if places == list(range(first, last + 1)):
        return lines[..., first : last + 1]
    return lines[..., places]


def stored_codes(manifest: RowManifest) -> dict[str, StoredCode]:
    """The codes of the categories that explain the response."""
    return {
        name: StoredCode(
            manifest.places(name),
            len(category.levels),
            manifest.columns[manifest.places(name)[0]].level is None,
        )
        for name, category in manifest.covariates.items()
    }


def stored_factor(
    names: Sequence[str],
    levels: Sequence[Sequence[int]],
    manifest: RowManifest,
    *,
    centred: bool = True,
    moments: Sequence[tuple[float, float]] | None = None,
) -> StoredFactor:
    """Columns of levels of a category, or of combinations of levels of several.

    Combinations need the mean and the sd of each of their columns.
    """
    codes = stored_codes(manifest)
    parts = tuple(codes[name] for name in names)
    of_parts = tuple(np.array(levels).T)
    if moments is None:
        share = np.array(manifest.covariates[names[0]].shares)[of_parts[0]]
        is_scaled = manifest.columns[parts[0].places[0]].standardised
        scales = np.sqrt(share * (1 - share)) if is_scaled else np.ones(len(levels))
    else:
        (share, scales), is_scaled = np.array(moments).T, True
    joint = np.ravel_multi_index(of_parts, [part.n_levels for part in parts])
    shifts = share if centred and is_scaled else np.zeros(len(levels))
    return StoredFactor(parts, *(tuple(of.tolist()) for of in (joint, shifts, scales)))


_MOST_LEVELS = 1000  # of a category whose levels are columns; as for tables


def observations(
    rows: ShardedRows,
    response: str | None = None,
    *,
    weights: str | None = None,
    offset: str | None = None,
) -> ShardedRows:
    """Rows of a row store as a regression sees them; the response named at ingestion by default.

    All columns but the response, weights and offset are covariates.
    """
    manifest = rows.shards.manifest
    name, names = response or manifest.response, manifest.names
    named = {"response": name, "weights": weights, "offset": offset}
    numbers = {role: column for role, column in named.items() if column or role == "response"}
    for role, wanted in numbers.items():
        if wanted not in names or wanted in manifest.covariates:
            cure = f"The columns are: {', '.join(names[:20])}."
            raise InvalidInput(role, "name a column of numbers of the row store", wanted, cure)
    features: list[Any] = []
    for place, column in enumerate(manifest.columns):
        if column.source not in manifest.covariates:
            features += [] if column.name in numbers.values() else [place]
        elif place == manifest.places(column.source)[0]:
            if (count := len(manifest.covariates[column.source].levels)) > _MOST_LEVELS:
                rule, cure = f"have at most {_MOST_LEVELS:,} levels", "Use `tallmc.fit`."
                raise InvalidInput(f"column {column.source!r}", rule, f"{count:,}", cure)
            shown = [(code,) for code in range(1, count)]
            features += [stored_factor([column.source], shown, manifest)] if shown else []
    if not features:
        raise InvalidInput("row store", "have a column besides the response", f"only {name}")
    place = names.index(str(name))
    weight, of_offset = (None if each is None else names.index(each) for each in (weights, offset))
    shown_as = ObservationsOf(tuple(features), place, weight=weight, offset=of_offset)
    return rows.viewed(shown_as)


def _names_of_store(rows: ShardedRows) -> list[str]:
    """The names of the columns that `observations` shows."""
    manifest, found = rows.shards.manifest, []
    for feature in rows.view.features:  # type: ignore[attr-defined]
        if isinstance(feature, int):
            found.append(manifest.names[feature])
            continue
        source = manifest.columns[feature.parts[0].places[0]].source
        levels = manifest.covariates[source].levels
        found += [f"{source}={levels[level]}" for level in feature.levels]
    return found


class RegressionData(abc.ABC):
    """The rows of a regression, checked, with what is known about their responses."""

    rows: AbstractRows
    n_columns: int
    names: tuple[str, ...] | None
    """Names of the columns, if they are known."""
    dtype: Any
    y_high: float
    """The largest response."""
    y_sd: float
    """The standard deviation of the responses."""
    level_values: LevelValues = None
    """The values of columns that rows hold as codes."""
    has_pairs: bool = False
    """Whether rows have two groups of a term, as in (1 | a - b)."""

    @abc.abstractmethod
    def check_response(
        self, rule: str, allowed: Callable[[np.ndarray], np.ndarray], *, whole: bool = True
    ) -> None:
        """Raise unless all responses are numbers, `whole` ones, for which `allowed` is true.

        `allowed` must be true for all such numbers between two for which it is true.
        """

    @abc.abstractmethod
    def some(self, chosen: np.ndarray) -> Observations:
        """Some rows by number, in float64 on the host; of group terms, the common columns only."""


class _InMemory(RegressionData):
    def __init__(
        self,
        X: ArrayLike | CodedColumns,
        y: ArrayLike,
        weights: ArrayLike | None,
        offset: ArrayLike | None,
        groups: tuple[GroupTerm, ...] = (),
        names: Sequence[str] | None = None,
        level_values: LevelValues = None,
        times: bool = False,
    ):
        found, matrix = (None, X) if isinstance(X, CodedColumns) else named_columns(X)
        self.names = found if names is None else tuple(names)
        x, self.responses = check_design(matrix, y, 0 if groups else 1, times=times)
        self.level_values = level_values
        self.has_pairs = any(term.codes.ndim > 1 for term in groups)
        per_row = (
            x,
            to_floats("y", self.responses, x.dtype),
            None if offset is None else check_per_row("offset", offset, x),
            None if weights is None else check_per_row("weights", weights, x, positive=True),
        )
        rows = GroupedObservations(*per_row, groups) if groups else Observations(*per_row)
        self.rows = ResidentRows(rows)
        self.n_columns = x.shape[1] + sum(term.n_columns for term in groups)
        self.dtype = x.dtype
        self.y_high = float(self.responses.max())
        self.y_sd = 1.0 if times else float(np.std(self.responses))

    def some(self, chosen: np.ndarray) -> Observations:
        rows = self.rows.take(jnp.asarray(chosen))
        x = matrix_of(
            rows.fixed if isinstance(rows, GroupedObservations) else rows.x, self.level_values
        )
        # The responses before they were rounded to the precision of x.
        return _on_host(Observations(x, self.responses[chosen], rows.offset, rows.weight))

    def check_response(
        self, rule: str, allowed: Callable[[np.ndarray], np.ndarray], *, whole: bool = True
    ) -> None:
        bad = ~allowed(self.responses)
        if whole:
            bad |= self.responses != np.floor(self.responses)
        if bad.any():
            found = f"{self.responses[np.argmax(bad)]:g} in row {np.argmax(bad)}"
            raise InvalidInput("y", rule, found)


class _OfRowStore(RegressionData):
    def __init__(self, rows: ShardedRows, names: Sequence[str]):
        view, manifest = rows.view, rows.shards.manifest
        assert isinstance(view, ObservationsOf), "`observations` makes it"
        column = manifest.columns[view.response]
        self.dtype = jax.dtypes.canonicalize_dtype(manifest.dtype)
        view, self.level_values = view.with_codes(manifest.n_rows, self.dtype)
        self.rows, self.n_columns, self._column = rows.viewed(view), len(names), column
        self.names = tuple(names)
        self._view, self._lines = view, rows.lines
        self.y_high = (column.high - view.shift) / view.scale
        self.y_sd = 1.0 if view.times else column.sd / view.scale
        for name, number in (("weights", view.weight), ("offset", view.offset)):
            if number is None:
                continue
            stored = manifest.columns[number]
            if stored.standardised:
                rule = "be a column as it was in the table"
                cure = "Ingest the table without standardising it."
                raise InvalidInput(name, rule, "a standardised one", cure)
            if name == "weights" and stored.low <= 0:
                raise InvalidInput(name, "be positive", f"{stored.low:g}", "Drop rows of weight 0.")

    def some(self, chosen: np.ndarray) -> Observations:
        found = self._view(self._lines(chosen))
        return _on_host(found._replace(x=matrix_of(found.x, self.level_values)))

    def check_response(
        self, rule: str, allowed: Callable[[np.ndarray], np.ndarray], *, whole: bool = True
    ) -> None:
        extremes = np.array([self._column.low, self._column.high])
        if (whole and not self._column.whole) or not allowed(extremes).all():
            kind = "whole numbers" if self._column.whole else "numbers"
            found = f"{kind} from {extremes[0]:g} to {extremes[1]:g}"
            raise InvalidInput(f"response {self._column.name!r}", rule, found)


def _on_host(block: Observations) -> Observations:
    return jax.tree.map(lambda column: np.asarray(column, np.float64), block)


def regression_data(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None,
    response: str | None,
    weights: Any = None,
    offset: Any = None,
    *,
    times: bool = False,
) -> RegressionData:
    """The rows of a regression; weights and offsets are arrays, or columns of the row store.

    With `times`, y are log times of entry and of both limits, (n, 3).
    """
    if isinstance(X, ShardedRows):
        if y is not None:
            cure = "Name the column of the response: response=..."
            raise InvalidInput("y", "be left out with rows of a row store", "an array", cure)
        for name, given in (("weights", weights), ("offset", offset)):
            if given is not None and not isinstance(given, str):
                raise InvalidInput(name, "name a column of the row store", type(given).__name__)
        if response is not None or not isinstance(X.view, ObservationsOf):
            X = observations(X, response, weights=weights, offset=offset)
        elif weights is not None or offset is not None:
            rule = "be named together with `response`, or where the rows were made observations"
            raise InvalidInput("weights and offset", rule, weights or offset)
        assert isinstance(X.view, ObservationsOf)
        return store_data(X, _names_of_store(X))
    if y is None or response is not None:
        raise InvalidInput("y", "be given, and `response` left out, if X is an array", response)
    for name, given in (("weights", weights), ("offset", offset)):
        if isinstance(given, str):
            raise InvalidInput(name, "be numbers, one per row, if X is an array", given)
    return _InMemory(X, y, weights, offset, times=times)


def design_data(
    x: np.ndarray | CodedColumns,
    y: np.ndarray,
    names: Sequence[str],
    weights: np.ndarray | None = None,
    offset: np.ndarray | None = None,
    groups: tuple[GroupTerm, ...] = (),
    level_values: LevelValues = None,
    times: bool = False,
) -> RegressionData:
    """The rows of a regression whose design a front end has made."""
    return _InMemory(x, y, weights, offset, groups, names, level_values, times)


def store_data(rows: ShardedRows, names: Sequence[str]) -> RegressionData:
    """The rows of a regression from a row store, viewed as observations."""
    return _OfRowStore(rows, names)


def named_columns(X: Any) -> tuple[tuple[str, ...] | None, Any]:
    """The names of the columns of a data frame and its matrix; None and X for an array."""
    if isinstance(X, (np.ndarray, jax.Array, list, tuple)):
        return None, X
    if hasattr(X, "tocsr") and hasattr(X, "toarray"):
        cure = "Pass X.toarray() if it fits in memory."
        raise InvalidInput("X", "be a dense matrix", "a sparse matrix", cure)
    columns, to_numpy = getattr(X, "columns", None), getattr(X, "to_numpy", None)
    if columns is None or to_numpy is None:
        return None, X
    return tuple(map(str, columns)), to_numpy()


def check_per_row(name: str, values: ArrayLike, x: Any, *, positive: bool = False) -> PerRow:
    """One finite number per row of x; positive, if asked."""
    found = np.asarray(check_numeric(name, values), np.float64)
    if found.shape != x.shape[:1]:
        raise InvalidInput(name, f"have one value per row ({x.shape[0]})", f"shape {found.shape}")
    bad = ~np.isfinite(found) | ((found <= 0) if positive else False)
    if bad.any():
        rule = "be positive and finite" if positive else "be finite"
        cure = "Drop rows of weight 0." if positive else ""
        raise InvalidInput(name, rule, f"{found[np.argmax(bad)]:g} in row {np.argmax(bad)}", cure)
    return to_floats(name, found, x.dtype)


def normal_prior(
    prior_variance: ArrayLike | None, data: RegressionData, n_predictors: int = 1
) -> NormalPrior:
    """Independent normal priors of the coefficients, from a variance or one per column."""
    if prior_variance is None:
        cure = "Pass that of the coefficients' normal prior, such as prior_variance=10."
        raise InvalidInput("prior_variance", "be given", None, cure)
    variance = to_floats("prior_variance", prior_variance, data.dtype)
    positive = (np.asarray(variance) > 0).all() and np.isfinite(variance).all()
    if variance.shape not in ((), (data.n_columns,)) or not positive:
        rule = f"be positive and finite, a number or one per column ({data.n_columns})"
        raise InvalidInput("prior_variance", rule, prior_variance)
    return NormalPrior(variance if variance.ndim == 0 else jnp.repeat(variance, n_predictors))


def check_design(
    X: Any, y: ArrayLike, least_columns: int = 1, *, times: bool = False
) -> tuple[Any, Float[np.ndarray, "n ..."]]:
    """X on the device and y on the host; raises unless their shapes fit and all are finite."""
    responses = np.asarray(check_numeric("y", y), np.float64)
    if isinstance(X, CodedColumns):
        dense, responses = check_design(X.dense, responses, 0, times=times)
        return dataclasses.replace(X, dense=dense, codes=jnp.asarray(X.codes)), responses
    x = to_floats("X", X)
    if x.ndim != 2 or not x.shape[0] or x.shape[1] < least_columns:
        rule = "be a matrix with at least one row and one column"
        raise InvalidInput("X", rule, f"shape {x.shape}")
    if responses.shape != ((x.shape[0], 3) if times else x.shape[:1]):
        rule = f"have {'three values' if times else 'one value'} per row of X ({x.shape[0]})"
        raise InvalidInput("y", rule, f"shape {responses.shape}")
    # Limits of times may be infinite.
    known = ~np.isnan(responses).any(axis=1) if times else np.isfinite(responses)
    finite = np.isfinite(x).all(axis=1) & known
    if not finite.all():
        found = f"NaN or infinity in row {np.argmin(finite)}"
        raise InvalidInput("X and y", "be finite", found, "Drop or impute such rows.")
    return x, responses
