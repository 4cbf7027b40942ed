"""All rows in every step, each with weight one: no subsampling, no noise."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Needs
from .._rows import Sum
from ..gradient.base import AbstractGradient
from .base import Setting, SizeChoice, SubsampleChoice
from .selection import AbstractDynamicSelection, Estimate, Memory, Transition


class AllRowsSelection(AbstractDynamicSelection):
    n_rows: int = eqx.field(static=True)

    @property
    def most_rows(self) -> int:
        return self.n_rows

    def supply(self, key: PRNGKeyArray, steps: int) -> None:
        return None

    def estimate(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        memory: Memory,
        supply: None,
        transition: Transition | None,
    ) -> Estimate:
        # Whatever the estimator, its residuals over all rows add up to the exact gradient.
        total = gradient.posterior.potential_and_gradient_sum(position)
        potential = Sum(total.high[0], total.low[0])
        return Estimate(total.rounded()[1], jnp.int32(self.n_rows), memory, potential=potential)


@dataclasses.dataclass(frozen=True)
class AllRows(SubsampleChoice):
    """Choose every row in every step."""

    needs = Needs.NOTHING
    passes = 0
    knows_its_spread = False

    def prepare(self, setting: Setting, size: SizeChoice | None) -> AllRowsSelection:
        return AllRowsSelection(n_rows=setting.posterior.n_rows)
