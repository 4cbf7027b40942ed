"""The rows of a regression: a row of the design matrix, a response, an offset and a weight.

    z_i = x_iᵀβ + o_i,   f_i = w_i f(z_i; y_i)

A weight counts a row w_i times. Most regressions have neither offsets nor weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Observations(NamedTuple):
    """Rows of a regression whose design matrix is stored."""

    x: Float[Array, "n d"]
    y: Float[Array, " n"]
    offset: Float[Array, " n"] | None = None
    weight: Float[Array, " n"] | None = None


class GroupTerm(eqx.Module):
    """Columns whose coefficients differ between groups, as in (1 + x | group).

    **Arguments:**

    - `codes`: the group of each row, 0 to `n_groups` − 1.
    - `columns`: the r columns, 1 for an intercept.
    - `n_groups`: the number of groups.
    """

    codes: Int[Array, " n"]
    columns: Float[Array, "n r"]
    n_groups: int = eqx.field(static=True)

    @property
    def n_columns(self) -> int:
        """Columns of the design matrix."""
        return self.n_groups * self.columns.shape[-1]

    @property
    def x(self) -> Float[Array, "n groups_times_r"]:
        """The design matrix: the r columns of a row stand at the place of its group."""
        member = jax.nn.one_hot(self.codes, self.n_groups, dtype=self.columns.dtype)
        return (member[..., :, None] * self.columns[..., None, :]).reshape(*self.codes.shape, -1)


class GroupedObservations(eqx.Module):
    """Rows of a regression with group terms. The matrix of dummies is made where it is needed."""

    fixed: Float[Array, "n c"]
    y: Float[Array, " n"]
    offset: Float[Array, " n"] | None
    weight: Float[Array, " n"] | None
    terms: tuple[GroupTerm, ...]

    @property
    def x(self) -> Float[Array, "n d"]:
        """The design matrix: the common columns, then those of each group term."""
        return jnp.concatenate([self.fixed, *(term.x for term in self.terms)], axis=-1)


RegressionRows = Observations | GroupedObservations


def weighted(rows: RegressionRows, values: Any) -> Any:
    """Values per row, (n, ...), times the weights of the rows."""
    if rows.weight is None:
        return values
    return rows.weight.reshape(-1, *[1] * (values.ndim - 1)) * values
