"""SAGA: control variates from a table that holds each row's gradient when it was last drawn.

    ∇f̂(θ) = Σ_i t_i + ∇f₀(θ) + Σ_{i∈S} w_i [∇f_i(θ) − t_i],
    then t_i ← ∇f_i(θ) for the rows drawn

SAGA needs no mode. Defazio et al. (2014); for Langevin dynamics, Dubey et al. (2016).

Preferential weights: the argument of putcha-2023, Lemma 3.2, holds with t_i in place of ∇f_i(θ̂),
so the best weights are p_i ∝ ‖∇f_i(θ) − t_i‖. The age of a table entry is N/n steps on average. If
that is longer than the chain's autocorrelation time, θ and the position at which t_i was computed
are independent. Their difference has covariance 2Σ̂, and the weights of eq. 16 ("curvature") follow
as for a fixed anchor.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from .._core.arrays import Vector
from .._rows.access import AbstractRows, RowAccess, RowBlock
from .._rows.law import Batch, first_of_each
from .._rows.passes import Sum
from ..models.model import AbstractModel
from .estimator import AbstractGradient, Indices, Positions, Residuals

_NEEDS_INDICES = "SAGA needs the row numbers of a batch"


class GradientTable(eqx.Module):
    """The gradient t_i of each row when it was last drawn."""

    compact: Float[Array, "N ..."]
    row_sum: Sum  # Σ t_i over all rows. A compensated sum, because every step adds to it.


class SAGA(AbstractGradient):
    """Control variates from a table of the gradients last seen, one table per chain.

    Memory per chain: one compact gradient per row, so N floats for a GLM, at most N·d for others.
    """

    paper = "Dubey, Reddi, Williamson, Póczos, Smola and Xing (2016)"
    bias = "Unbiased given the past."
    cost = (
        "One pass over the rows at the start fills the table. The cost per step does not depend "
        "on N."
    )
    order = None
    has_memory = True
    row_access = RowAccess.TAKE

    def start(self, positions: Positions, rows: AbstractRows) -> GradientTable:
        return _tables_at(self.model, positions, rows)

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.ones_like(step)

    def known(self, position: Vector, carried: Any = None) -> Vector:
        return carried.row_sum.rounded() + self.model.prior_gradient(position)

    def residuals(
        self, position: Vector, block: RowBlock, indices: Indices | None = None, carried: Any = None
    ) -> Residuals:
        return self.model.row_gradients(position, block) - _entries(carried, indices)

    def learn(self, carried: GradientTable, batch: Batch, residuals: Residuals) -> GradientTable:
        assert batch.indices is not None, _NEEDS_INDICES
        new_entries = _entries(carried, batch.indices) + residuals
        compact = carried.compact.at[batch.indices].set(new_entries, mode="promise_in_bounds")
        # The table changes once per distinct row, so repeated draws must not count twice.
        once_per_row = first_of_each(batch.indices).astype(batch.weights.dtype)
        change = self.model.combine(residuals, batch.rows, once_per_row)
        return GradientTable(compact, carried.row_sum.plus(change))


@eqx.filter_jit
def _tables_at(model: AbstractModel, positions: Positions, rows: AbstractRows) -> GradientTable:
    def table_at(position: Vector) -> GradientTable:
        compact = rows.map(_row_gradients, model, position, width=model.width(rows))
        total = model.potential_and_gradient(position, rows)
        return GradientTable(
            compact, Sum(total.high[1], total.low[1] - model.prior_gradient(position))
        )

    return jax.vmap(table_at)(positions)


def _row_gradients(block: RowBlock, model: AbstractModel, position: Vector) -> Residuals:
    return model.row_gradients(position, block)


def _entries(carried: GradientTable, indices: Indices | None) -> Residuals:
    assert indices is not None, _NEEDS_INDICES
    return carried.compact.at[indices].get(mode="promise_in_bounds")
