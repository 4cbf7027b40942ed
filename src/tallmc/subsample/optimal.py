"""The optimal weights at the current state, for study.

    p_i ∝ ‖r_i(θ)‖,   r_i the estimator's residual

This is eq. 10 of putcha-2023 for the simple estimator, and eq. 14 for control variates. No other
weights give less noise at this state (Lemmas 3.1 and 3.2). They show how far fixed
weights are from the optimum. The law is rounded to integers P_i ≥ 1 with Σ P_i = 2³² before
drawing, and the importance weights use the rounded law.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from .._core.arrays import Vector
from .._core.random import random_words
from .._rows.access import AbstractRows, RowBlock
from .._rows.law import RowDraws
from ..gradient.estimator import AbstractGradient
from .selection import (
    AbstractSelection,
    Estimate,
    GradientAt,
    SizeChoice,
    SubsampleChoice,
    SubsampleContext,
    centred,
    fixed_rows,
)

_TOTAL_UNITS = 2.0**32
# The sum of float32 shares may slightly exceed one. The units left over go to the largest weight.
_ROUNDING_SLACK = 2.0**-14


class OptimalSelection(AbstractSelection):
    """Draws with replacement from the optimal weights at the current state."""

    size: int = eqx.field(static=True)
    n_rows: int = eqx.field(static=True)

    @property
    def most_rows(self) -> int:
        return self.n_rows

    def draw(self, key: PRNGKeyArray, steps: int) -> UInt32[Array, "steps n"]:
        return random_words(key, (steps, self.size))[..., 0]

    def units(
        self, gradient: AbstractGradient, position: Vector, rows: AbstractRows, carried: Any = None
    ) -> UInt32[Array, " N"]:
        """P_i, the law in units of 2⁻³². The sum is 2³², which is 0 in 32 bits."""
        numbers = jnp.arange(self.n_rows, dtype=jnp.int32)
        width = gradient.model.width(rows)
        norms = rows.map(_residual_norms, gradient, position, carried, width=width, beside=numbers)
        total = jnp.sum(norms)
        share = jnp.where(total > 0, norms / total, 1 / self.n_rows)
        free = (_TOTAL_UNITS - self.n_rows) * (1 - _ROUNDING_SLACK)
        units = (share * free).astype(jnp.uint32) + jnp.uint32(1)
        return units.at[jnp.argmax(units)].add(jnp.uint32(0) - jnp.sum(units, dtype=jnp.uint32))

    def draws_at(
        self, units: UInt32[Array, " N"], indices: Int[Array, " n"], dtype: jnp.dtype
    ) -> RowDraws:
        """These rows with their importance weights under the law `units`."""
        return RowDraws(indices, _TOTAL_UNITS / (self.size * units[indices].astype(dtype)))

    def estimate(self, at: GradientAt, gathered: UInt32[Array, " n"]) -> Estimate:
        rows = at.rows
        units = self.units(at.gradient, at.position, rows, at.carried.gradient)
        first_unit_of_row = jnp.cumsum(units, dtype=jnp.uint32) - units
        indices = jnp.searchsorted(first_unit_of_row, gathered, side="right").astype(jnp.int32) - 1
        batch = rows.complete(rows.gather(self.draws_at(units, indices, at.position.dtype)))
        estimate = at.estimate_from(batch, centred)
        return dataclasses.replace(estimate, n_rows=jnp.int32(self.n_rows))


def _residual_norms(
    block: RowBlock,
    indices: Int[Array, " n"],
    gradient: AbstractGradient,
    position: Vector,
    carried: Any,
) -> Float[Array, " n"]:
    return gradient.model.norms(gradient.residuals(position, block, indices, carried), block)


@dataclasses.dataclass(frozen=True)
class Optimal(SubsampleChoice):
    """The optimal weights at the current state (eq. 10 or 14). Every step reads all rows."""

    paper = "Putcha, Nemeth and Fearnhead (2023)"
    bias = "Exactly unbiased."
    cost = "Every step reads all rows to compute the weights, so they never save time."

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> OptimalSelection:
        why = (
            "with state-dependent weights: "
            "the bound of eq. 19 is for one law, and each step reads all rows"
        )
        cure = "Use Preferential(...) with BoundedNoise(...)."
        n = fixed_rows(size, context.posterior, why, cure)
        return OptimalSelection(size=n, n_rows=context.posterior.n_rows)
