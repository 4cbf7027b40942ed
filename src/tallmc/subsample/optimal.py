"""The optimal weights at the current state, p_i ∝ ‖r_i(θ)‖, r_i the estimator's residual: for study.

For the simple estimator this is eq. 10 of putcha-2023, for control variates eq. 14. No other weights give less noise at this
state (Lemmas 3.1 and 3.2). Every step looks at all rows to find them, so it never pays; it says how far fixed weights are from
the best.

The law is rounded to integers P_i ≥ 1 with Σ P_i = 2³² before drawing, and the weights use the rounded law: exactly unbiased.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from .._anchor import Needs
from .._errors import InvalidInput
from .._random import random_words
from .._rows import map_rows, take_rows
from ..gradient.base import AbstractGradient, Batch
from .base import Setting, SizeChoice, SubsampleChoice
from .selection import AbstractDynamicSelection, Estimate, Memory, Picks, Transition, centred, estimate_from
from .size import Fixed

_TOTAL = 2.0**32
_ROUNDING_SLACK = 2.0**-14  # float32 shares may sum to a little over one; what is left over goes to the largest


class OptimalSelection(AbstractDynamicSelection):
    size: int = eqx.field(static=True)
    n_rows: int = eqx.field(static=True)

    @property
    def most_rows(self) -> int:
        return self.n_rows

    def supply(self, key: PRNGKeyArray, steps: int) -> UInt32[Array, "steps n"]:
        return random_words(key, (steps, self.size))[..., 0]

    def units(self, gradient: AbstractGradient, position: Float[Array, " d"], memory: Any = None) -> UInt32[Array, " N"]:
        """P_i, the law in units of 2⁻³²; they sum to 2³², which is 0 in 32 bits."""
        posterior = gradient.posterior

        def block(numbered):  # type: ignore[no-untyped-def]
            rows, indices = numbered
            return posterior.norms(gradient.residuals(position, rows, indices, memory), rows)

        norms = map_rows(block, (posterior.data, jnp.arange(self.n_rows, dtype=jnp.int32)), posterior.width)
        total = jnp.sum(norms)
        share = jnp.where(total > 0, norms / total, 1 / self.n_rows)
        free = (_TOTAL - self.n_rows) * (1 - _ROUNDING_SLACK)
        units = (share * free).astype(jnp.uint32) + jnp.uint32(1)
        return units.at[jnp.argmax(units)].add(jnp.uint32(0) - jnp.sum(units, dtype=jnp.uint32))

    def picks_at(self, units: UInt32[Array, " N"], indices: Int[Array, " n"], dtype: jnp.dtype) -> Picks:
        """These rows with the weights they have when drawn from the law `units`."""
        return Picks(indices, _TOTAL / (self.size * units[indices].astype(dtype)))

    def estimate(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        memory: Memory,
        supply: UInt32[Array, " n"],
        transition: Transition | None,
    ) -> Estimate:
        units = self.units(gradient, position, memory.gradient)
        start_of_row = jnp.cumsum(units, dtype=jnp.uint32) - units
        indices = jnp.searchsorted(start_of_row, supply, side="right").astype(jnp.int32) - 1
        picks = self.picks_at(units, indices, position.dtype)
        batch = Batch(take_rows(gradient.posterior.data, indices), picks.weights, indices)
        estimate = estimate_from(gradient, position, memory, batch, centred)
        return dataclasses.replace(estimate, n_rows=jnp.int32(self.n_rows))


@dataclasses.dataclass(frozen=True)
class Optimal(SubsampleChoice):
    """Choose rows by the optimal weights at the current state (eq. 10 or 14). Every step touches all rows."""

    needs = Needs.NOTHING
    passes = 0
    knows_its_spread = True

    def prepare(self, setting: Setting, size: SizeChoice | None) -> OptimalSelection:
        if not isinstance(size, Fixed):
            raise InvalidInput(
                "size",
                "be fixed with state-dependent weights: the bound of eq. 19 is for one law, and each step reads all rows",
                size,
                "Use Preferential(...) with Adaptive(...).",
            )
        return OptimalSelection(size=size.checked(setting.posterior), n_rows=setting.posterior.n_rows)
