"""All rows in every step, each with weight one: no subsampling and no noise."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from .._core.arrays import Vector
from .._rows.access import AbstractRows
from .._rows.passes import Sum
from ..gradient.estimator import AbstractGradient
from .selection import (
    AbstractSelection,
    Carried,
    Estimate,
    SizeChoice,
    SubsampleChoice,
    SubsampleContext,
    Transition,
)


class AllRowsSelection(AbstractSelection):
    """Every row, with weight one."""

    n_rows: int = eqx.field(static=True)

    @property
    def most_rows(self) -> int:
        return self.n_rows

    def draw(self, key: PRNGKeyArray, steps: int) -> None:
        return None

    def estimate(
        self,
        gradient: AbstractGradient,
        position: Vector,
        carried: Carried,
        gathered: None,
        rows: AbstractRows,
        transition: Transition | None,
    ) -> Estimate:
        # For every estimator, the known part plus the residuals of all rows is the exact gradient.
        total = gradient.model.potential_and_gradient(position, rows)
        potential = Sum(total.high[0], total.low[0])
        return Estimate(total.rounded()[1], jnp.int32(self.n_rows), carried, potential=potential)


@dataclasses.dataclass(frozen=True)
class AllRows(SubsampleChoice):
    """Every row in every step."""

    bias = "No gradient noise."
    cost = "Every step is a pass over the data."
    knows_its_spread = False

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> AllRowsSelection:
        return AllRowsSelection(n_rows=context.posterior.n_rows)
