"""All rows in every step, each with weight one: no subsampling and no noise."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..gradient.base import AbstractGradient
from ..rows.base import AbstractRows, RowAccess
from ..rows.sums import Sum
from .base import SizeChoice, SubsampleChoice, SubsampleContext
from .selection import AbstractDynamicSelection, Estimate, Memory, Transition


class AllRowsSelection(AbstractDynamicSelection):
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
        position: Float[Array, " d"],
        memory: Memory,
        gathered: None,
        source: AbstractRows,
        transition: Transition | None,
    ) -> Estimate:
        # For every estimator, the known part plus the residuals of all rows is the exact gradient.
        total = gradient.model.potential_and_gradient(position, source)
        potential = Sum(total.high[0], total.low[0])
        return Estimate(total.rounded()[1], jnp.int32(self.n_rows), memory, potential=potential)


@dataclasses.dataclass(frozen=True)
class AllRows(SubsampleChoice):
    """Every row in every step.

    >>> AllRows().knows_its_spread
    False
    """

    needs = AnchorLevel.NOTHING
    row_access = RowAccess.TAKE
    passes = 0
    knows_its_spread = False

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> AllRowsSelection:
        return AllRowsSelection(n_rows=context.posterior.n_rows)
