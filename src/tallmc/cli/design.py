"""Turn a table into a checked design matrix and response, standardised, with an intercept."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from ..ingestion.errors import (
    INTERCEPT,
    TableError,
    check_complete,
    check_features,
    check_varying,
    constant_response,
    first_not_a_number,
    some,
)
from .table import InputTable

Family = Literal["bernoulli", "gaussian", "poisson"]


@dataclasses.dataclass(frozen=True)
class Design:
    """The design matrix and response of a regression, with the scaling that was applied."""

    x: np.ndarray
    y: np.ndarray
    names: tuple[str, ...]
    """Names of the columns of x."""
    means: dict[str, float]
    """Mean subtracted from each column and from a gaussian response. Empty if not standardised."""
    sds: dict[str, float]
    """Standard deviations that divided the same columns."""


def make_design(table: InputTable, family: Family, *, standardise: bool, intercept: bool) -> Design:
    """Build the design in float32, with the intercept as the first column.

    `standardise` applies to the columns and to a gaussian response.
    """
    features = table.features
    _check_numeric(features)
    _check_complete(table.columns)
    y = _checked_response(table.response, table.columns[table.response], family)
    if standardise:
        check_varying(
            {
                name: float(values[0])
                for name, values in features.items()
                if values.min() == values.max()
            }
        )
    check_features(features, table.response, intercept=intercept)

    names = ((INTERCEPT,) if intercept else ()) + tuple(features)
    x = np.ones((table.n_rows, len(names)), np.float32)
    means, sds = {}, {}
    for j, (name, values) in enumerate(features.items(), start=int(intercept)):
        column = values.astype(np.float64)
        if standardise:
            means[name], sds[name] = float(column.mean()), float(column.std())
            column = (column - means[name]) / sds[name]
        x[:, j] = column
    if standardise and family == "gaussian":
        means[table.response], sds[table.response] = float(y.mean()), float(y.std())
        y = (y - y.mean()) / y.std()
    return Design(x, y, names, means, sds)


def _is_numeric(values: np.ndarray) -> bool:
    return values.dtype.kind in "biuf"


def _check_numeric(features: dict[str, np.ndarray]) -> None:
    non_numeric = {name: values for name, values in features.items() if not _is_numeric(values)}
    if non_numeric:
        found = some(
            f"{name} (such as {first_not_a_number(values)!r})"
            for name, values in non_numeric.items()
        )
        cure = (
            "Drop them or encode them one-hot, with one 0/1 column per value: "
            "pandas.get_dummies(table, drop_first=True)."
        )
        raise TableError("columns", "be numbers or booleans", found, cure)


def _check_complete(columns: dict[str, np.ndarray]) -> None:
    found = []
    for name, values in columns.items():
        missing = (
            np.array([value is None for value in values])
            if values.dtype == object
            else np.zeros(len(values), bool)
        )
        missing = np.isnan(values) if values.dtype.kind == "f" else missing
        infinite = np.isinf(values) if values.dtype.kind == "f" else np.zeros(0, bool)
        found += [f"{name}: {missing.sum()} missing"] if missing.any() else []
        found += [f"{name}: {infinite.sum()} infinite"] if infinite.any() else []
    check_complete(found)


def _checked_response(name: str, values: np.ndarray, family: Family) -> np.ndarray:
    parameter = f"response {name!r}"
    distinct = np.unique(values.astype(str) if values.dtype == object else values)
    if len(distinct) == 1:
        raise constant_response(name, distinct[0])
    if family == "bernoulli":
        _check_binary(parameter, name, values, distinct)
    elif not _is_numeric(values):
        raise TableError(
            parameter, f"hold numbers for --family {family}", f"values such as {str(values[0])!r}"
        )
    elif family == "poisson":
        bad = (distinct < 0) | (distinct != np.floor(distinct))
        if bad.any():
            rule = "hold counts (0, 1, 2, …) for --family poisson"
            raise TableError(
                parameter,
                rule,
                f"{distinct[bad][0]:g}",
                "Use --family gaussian if the response is not a count.",
            )
    return values.astype(np.float64)


def _check_binary(parameter: str, name: str, values: np.ndarray, distinct: np.ndarray) -> None:
    if _is_numeric(values) and np.array_equal(distinct.astype(float), [0.0, 1.0]):
        return
    rule = "hold 0 and 1, or booleans, for --family bernoulli"
    if len(distinct) > 2:
        cure = "Choose which values count as 1, or use --family gaussian or poisson."
        raise TableError(
            parameter,
            rule,
            f"{len(distinct)} different values, {distinct[0]} to {distinct[-1]}",
            cure,
        )
    low, high = distinct.tolist()
    cure = (
        "Choose the value that counts as 1, e.g. with pandas: "
        f"table[{name!r}] = table[{name!r}] == {high!r}."
    )
    raise TableError(parameter, rule, f"{low!r} and {high!r}", cure)
