"""New rows of a user's table in the form of the fitted model."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from ..core.errors import InvalidInput
from ..models.observations import GroupedObservations, GroupTerm, Observations, RegressionRows
from .tables import Design, DesignEncoding, read_table


@dataclasses.dataclass(frozen=True)
class TableEncoder:
    """Turns tables into rows of the model, with the columns, levels and scaling of the fit.

    **Arguments:**

    - `encoding`: what the fit remembers of its table.
    - `has_intercept`: whether the model has a column of ones.
    """

    encoding: DesignEncoding
    has_intercept: bool

    def __call__(
        self,
        new_rows: Any,
        *,
        response: bool = False,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> RegressionRows:
        for name, given in (("offset", offset), ("trials", trials)):
            if given is not None:
                cure = "The table has the columns that the fit used."
                raise InvalidInput(name, "be left out for draws from a table", "numbers", cure)
        return observed_rows(
            self.encoding.apply(read_table(new_rows), need_response=response), self.has_intercept
        )


def observed_rows(design: Design, has_intercept: bool) -> RegressionRows:
    """The rows of a design as the model sees them; NaN for unknown responses."""
    x = design_matrix(design, has_intercept)
    y = np.full(len(x), np.nan) if design.y is None else np.asarray(design.y, np.float64)
    weights = design.weights
    if design.trials is not None:
        y, weights = y / design.trials, times(design.trials, weights)
    matrix, responses, offset, weight = (
        None if values is None else jnp.asarray(values, x.dtype)
        for values in (x, y, design.offset, weights)
    )
    assert matrix is not None and responses is not None
    groups = group_terms(design)
    if groups:
        return GroupedObservations(matrix, responses, offset, weight, groups)
    return Observations(matrix, responses, offset, weight)


def design_matrix(design: Design, has_intercept: bool) -> np.ndarray:
    """The matrix, without the column of ones if cut points replace it."""
    first = int(not has_intercept and design.names[:1] == ("Intercept",))
    return np.ascontiguousarray(design.x[:, first:])


def group_terms(design: Design) -> tuple[GroupTerm, ...]:
    """The terms (1 + x | group) of a design."""
    return tuple(
        GroupTerm(jnp.asarray(group.codes), jnp.asarray(group.x), len(group.levels))
        for group in design.groups
    )


def times(a: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """The product, where a missing factor is 1."""
    return a if b is None else a * b
