"""Columns that are no covariates: weights of rows, offsets, exposures and numbers of trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...ingestion.errors import TableError
from .table import Table

_WEIGHT_NAMES = {"weight", "weights", "wt", "sample_weight"}


class RowValues(NamedTuple):
    """Values per row, in float64; None if the fit has none."""

    weights: np.ndarray | None
    offset: np.ndarray | None
    trials: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class RowRoles:
    """The columns with a role.

    **Arguments:**

    - `weights`: how often each row counts.
    - `offset`: what is added to the linear predictor.
    - `exposure`: positive numbers, whose logarithm is added to the linear predictor.
    - `trials`: the number of trials of a binomial response.

    >>> from tallmc.frontends.tables import read_table
    >>> table = read_table({"days": [1.0, np.e]})
    >>> RowRoles(exposure="days").values(table, None).offset.tolist()
    [0.0, 1.0]
    """

    weights: str | None = None
    offset: str | None = None
    exposure: str | None = None
    trials: str | None = None

    @property
    def names(self) -> dict[str, str]:
        """The names of the columns, by role."""
        return {role: name for role, name in dataclasses.asdict(self).items() if name is not None}

    def needed(self, *, need_response: bool) -> list[str]:
        """The columns without which a design cannot be made."""
        roles = ("offset", "exposure", "trials") if need_response else ("offset", "exposure")
        return [self.names[role] for role in roles if role in self.names]

    def check(self, table: Table) -> None:
        """Raise unless the table has these columns."""
        for role, name in self.names.items():
            if not isinstance(name, str):
                cure = "Add the values to the table as a column."
                raise TableError(_parameter(role), "name a column", type(name).__name__, cure)
            table.column(name, _parameter(role))

    def values(self, table: Table, y: np.ndarray | None) -> RowValues:
        """The values of these columns, checked; `y` is the response, if there is one."""
        weights = self._numbers(table, "weights")
        if weights is not None:
            _check(weights >= 0, weights, "weights", "be positive or 0")
            if not weights.any():
                raise TableError(_parameter("weights"), "not all be 0", "0 in every row")
        offset, exposure = self._numbers(table, "offset"), self._numbers(table, "exposure")
        if exposure is not None:
            _check(exposure > 0, exposure, "exposure", "be positive")
            offset = np.log(exposure) if offset is None else offset + np.log(exposure)
        trials = self._numbers(table, "trials")
        if trials is not None:
            whole = (trials >= 1) & (trials == np.floor(trials))
            _check(whole, trials, "trials", "be whole numbers of at least 1")
            if y is not None:
                _check(trials >= y, trials, "trials", "be at least the response")
        return RowValues(weights, offset, trials)

    def _numbers(self, table: Table, role: str) -> np.ndarray | None:
        name = self.names.get(role)
        if name is None or name not in table.columns:
            return None
        column = table.columns[name]
        if column.kind not in ("number", "boolean"):
            raise TableError(_parameter(role), "hold numbers", f"{name}, a column of {column.kind}")
        numbers = column.numbers.astype(np.float64)
        _check(np.isfinite(numbers), numbers, role, "be finite")
        return numbers


def _check(good: np.ndarray, values: np.ndarray, role: str, rule: str) -> None:
    if not good.all():
        row = int(good.argmin())
        raise TableError(_parameter(role), rule, f"{values[row]:g} in row {row + 1}")


def _parameter(role: str) -> str:
    return f"--{role} ({role})"


def unused_weights(features: Mapping[str, object]) -> list[str]:
    """Notes on columns that are used as covariates, but whose name says that they hold weights."""
    return [
        f"column {name!r} is a covariate; if it weights the rows, pass --weights {name} (weights)"
        for name in features
        if name.lower() in _WEIGHT_NAMES
    ]
