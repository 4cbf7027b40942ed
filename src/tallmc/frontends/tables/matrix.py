"""Columns of numbers become a matrix for the sampler: (x − mean)/sd, row-major.

Moments and differences are in float64; only the result is rounded. Without an intercept, columns
are divided by their standard deviations but not centred: a shift could not be undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...ingestion.errors import TableError, some

INTERCEPT = "Intercept"
_ROWS_AT_ONCE = 2**13


class RawColumn(NamedTuple):
    """One column of a design as it is in the table.

    `numbers` are its values; or codes, if `by_code` has the value of each code.
    """

    numbers: np.ndarray
    by_code: np.ndarray | None = None

    def part(self, rows: slice) -> np.ndarray:
        """The values in some rows."""
        numbers = self.numbers[rows]
        return numbers if self.by_code is None else self.by_code[numbers]

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation, as a population."""
        if self.by_code is None:
            exact = self.numbers.astype(np.float64, copy=False)
            with np.errstate(over="ignore", invalid="ignore"):
                return float(exact.mean()), float(exact.std())
        shares = np.bincount(self.numbers, minlength=len(self.by_code)) / len(self.numbers)
        mean = float(shares @ self.by_code)
        return mean, float(np.sqrt(shares @ (self.by_code - mean) ** 2))


def ones(n_rows: int) -> RawColumn:
    """The column of the intercept."""
    return RawColumn(np.broadcast_to(np.float64(1.0), n_rows))


def scales(
    columns: Sequence[RawColumn], names: Sequence[str], *, standardise: bool
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The means to subtract and the standard deviations to divide by.

    **Raises:** `TableError` if a column is constant beside an intercept, or zero.
    """
    means, sds = [0.0] * len(names), [1.0] * len(names)
    if not standardise:
        return tuple(means), tuple(sds)
    centred = INTERCEPT in names
    constant = {}
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        if name == INTERCEPT:
            continue
        mean, sd = column.moments()
        if sd == 0 or _is_constant(column):
            if centred or mean == 0:
                constant[name] = mean
            continue
        means[place], sds[place] = mean if centred else 0.0, sd
    if constant:
        found = some(f"{name} ({value:g} in every row)" for name, value in constant.items())
        cure = (
            "Leave them out with --exclude (the intercept is added automatically) or pass "
            "--no-standardise (standardise=False)."
        )
        raise TableError("columns", "vary to be standardised", found, cure)
    return tuple(means), tuple(sds)


def _is_constant(column: RawColumn) -> bool:
    """Whether all values are equal; the moments of equal values may not be exact."""
    return column.by_code is None and bool((column.numbers == column.numbers[0]).all())


def scaled_matrix(
    columns: Sequence[RawColumn],
    names: Sequence[str],
    means: Sequence[float],
    sds: Sequence[float],
    n_rows: int,
    dtype: str,
) -> np.ndarray:
    """The matrix with the columns (x − mean)/sd.

    **Raises:** `TableError` if a value is not finite or too large for `dtype`.

    >>> scaled_matrix([ones(2), RawColumn(np.array([2, 6]))], ["Intercept", "x"], (0, 4), (1, 2), 2,
    ...     "float32").tolist()
    [[1.0, -1.0], [1.0, 1.0]]
    """
    matrix = np.empty((n_rows, len(columns)), dtype)
    exact = np.empty(_ROWS_AT_ONCE)
    rounded = np.empty((len(columns), _ROWS_AT_ONCE), dtype)
    pieces = [
        column
        if column.by_code is None
        else column._replace(by_code=((column.by_code - mean) / sd).astype(dtype))
        for column, mean, sd in zip(columns, means, sds, strict=True)
    ]
    for first in range(0, n_rows, _ROWS_AT_ONCE):  # small enough for the cache
        rows = slice(first, min(first + _ROWS_AT_ONCE, n_rows))
        count = rows.stop - first
        with np.errstate(over="ignore", invalid="ignore"):
            for place, (column, mean, sd) in enumerate(zip(pieces, means, sds, strict=True)):
                values = column.part(rows)
                if column.by_code is None and (mean, sd) != (0.0, 1.0):
                    np.subtract(values, mean, out=exact[:count])
                    values = np.divide(exact[:count], sd, out=exact[:count])
                rounded[place, :count] = values
        if not np.isfinite(rounded[:, :count]).all():
            raise _not_finite(columns, rounded[:, :count], names, first)
        matrix[rows] = rounded[:, :count].T
    return matrix


def _not_finite(
    columns: Sequence[RawColumn], rounded: np.ndarray, names: Sequence[str], first: int
) -> TableError:
    place = int((~np.isfinite(rounded)).any(axis=1).argmax())
    values = columns[place].part(slice(first, first + rounded.shape[1]))
    bad = ~np.isfinite(values)
    row = int((bad if bad.any() else ~np.isfinite(rounded[place])).argmax())
    value = float(values[row])
    row += first
    parameter = f"column {names[place]!r} of the design"
    found = f"{value:g} in row {row + 1}"
    if np.isfinite(value):
        cure = "Divide the column by a power of ten first."
        return TableError(parameter, f"have values that {rounded.dtype} can hold", found, cure)
    cure = "Leave out these rows, or change the formula."
    return TableError(parameter, "be finite", found, cure)
