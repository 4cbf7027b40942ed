"""SAGA: control variates from a table that holds each row's gradient when it was last drawn.

    ∇f̂(θ) = Σ_i t_i + ∇f₀(θ) + Σ_{i∈S} w_i [∇f_i(θ) − t_i],
    then t_i ← ∇f_i(θ) for the rows drawn

Unbiased given the past. SAGA needs no mode. One pass over the rows at the start fills the table.
The cost per step does not depend on N. Memory per chain: one compact gradient per row, so N floats
for a generalised linear model and at most N·d for other models. Defazio et al. (2014); for Langevin
dynamics, Dubey et al. (2016).

Preferential weights: the argument of putcha-2023, Lemma 3.2, holds with t_i in place of ∇f_i(θ̂),
so the best weights are p_i ∝ ‖∇f_i(θ) − t_i‖. The age of a table entry is N/n steps on average. If
that is longer than the chain's autocorrelation time, θ and the position at which t_i was computed
are independent. Their difference has covariance 2Σ̂, and the weights of eq. 16 ("curvature") follow
as for a fixed anchor.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from ..anchor.anchor import Anchor, AnchorLevel
from ..models.base import AbstractModel
from ..models.posterior import AbstractPosterior
from ..rows.base import AbstractRows, RowAccess, RowBlock
from ..rows.batch import Batch
from ..rows.gather import first_of_each
from ..rows.sums import Sum
from .base import AbstractGradient, GradientChoice, combined_residuals

_NEEDS_INDICES = "SAGA needs the row numbers of a batch"


class GradientTable(eqx.Module):
    """The gradient t_i of each row when it was last drawn."""

    compact: Float[Array, "N ..."]
    row_sum: Sum
    """Σ t_i over all rows. A compensated sum, because every step adds to it."""


class SagaGradient(AbstractGradient):
    """Control variates from a table of gradients, one table per chain.

    **Arguments:**

    - `model`: the model whose gradient is estimated.

    >>> import numpy as np, tallmc
    >>> X, y = [[1.0], [1.0]], [1.0, 2.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> SagaGradient(posterior.model).passes_before(np.array([0, 100]))
    array([1, 1])
    """

    model: AbstractModel

    @property
    def renewed_every(self) -> None:
        return None

    def start(self, positions: Float[Array, "chains d"], source: AbstractRows) -> GradientTable:
        return _tables_at(self.model, positions, source)

    def renew(
        self,
        memory: GradientTable,
        positions: Float[Array, "chains d"],
        row_sums: Float[Array, "chains d"],
    ) -> GradientTable:
        return memory

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.ones_like(step)

    def known(self, position: Float[Array, " d"], memory: GradientTable) -> Float[Array, " d"]:
        return memory.row_sum.rounded() + self.model.prior_gradient(position)

    def residuals(
        self,
        position: Float[Array, " d"],
        rows: RowBlock,
        indices: Int[Array, " n"] | None,
        memory: GradientTable,
    ) -> Float[Array, "n ..."]:
        return self.model.row_gradients(position, rows) - _entries(memory, indices)

    def residual_sum(
        self, position: Float[Array, " d"], batch: Batch, memory: GradientTable
    ) -> Float[Array, " d"]:
        return combined_residuals(self, position, batch, memory)

    def learn(
        self, memory: GradientTable, batch: Batch, residuals: Float[Array, "n ..."]
    ) -> GradientTable:
        assert batch.indices is not None, _NEEDS_INDICES
        new_entries = _entries(memory, batch.indices) + residuals
        compact = memory.compact.at[batch.indices].set(new_entries, mode="promise_in_bounds")
        # The table changes once per distinct row, so repeated draws must not count twice.
        once_per_row = first_of_each(batch.indices).astype(batch.weights.dtype)
        change = self.model.combine(residuals, batch.rows, once_per_row)
        return GradientTable(compact, memory.row_sum.plus(change))


@eqx.filter_jit
def _tables_at(
    model: AbstractModel, positions: Float[Array, "chains d"], source: AbstractRows
) -> GradientTable:
    def table_at(position: Float[Array, " d"]) -> GradientTable:
        compact = source.map(_row_gradients, model, position, width=model.width(source))
        total = model.potential_and_gradient(position, source)
        return GradientTable(
            compact, Sum(total.high[1], total.low[1] - model.prior_gradient(position))
        )

    return jax.vmap(table_at)(positions)


def _row_gradients(
    rows: RowBlock, model: AbstractModel, position: Float[Array, " d"]
) -> Float[Array, "n ..."]:
    return model.row_gradients(position, rows)


def _entries(memory: GradientTable, indices: Int[Array, " n"] | None) -> Float[Array, "n ..."]:
    assert indices is not None, _NEEDS_INDICES
    return memory.compact.at[indices].get(mode="promise_in_bounds")


@dataclasses.dataclass(frozen=True)
class SAGA(GradientChoice):
    """Control variates from a table of the gradients last seen.

    Memory per chain: N floats for a GLM, at most N·d floats for other models.

    >>> SAGA().has_memory
    True
    """

    needs = AnchorLevel.NOTHING
    order = None
    has_memory = True
    row_access = RowAccess.TAKE

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> SagaGradient:
        return SagaGradient(model=posterior.model)
