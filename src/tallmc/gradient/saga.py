"""SAGA: control variates from a table that remembers each row's gradient at the time it was last drawn.

    ∇f̂(θ) = Σ_i t_i + ∇f₀(θ) + Σ_{i∈S} w_i [∇f_i(θ) − t_i],   then   t_i ← ∇f_i(θ) for the rows drawn

Unbiased given the past. No mode is needed; one pass over the rows at the start fills the table, and no step costs more because N
grew. Memory: for each chain one compact gradient a row, so N floats for a generalised linear model and N·d for a general one.
Defazio et al. (2014); for Langevin dynamics, Dubey et al. (2016).

Preferential weights: the argument of putcha-2023, Lemma 3.2, holds with t_i for ∇f_i(θ̂), so the best weights are
p_i ∝ ‖∇f_i(θ) − t_i‖. A row's entry is N/n steps old on average; where that is longer than the chain's memory, the difference of
two independent positions has covariance 2Σ̂ and the weights of eq. 16 ("curvature") follow as they do for a fixed anchor.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._anchor import Anchor, Needs
from .._posterior import AbstractPosterior
from .._rows import Sum, first_of_each, map_rows
from .base import AbstractGradient, Batch, GradientChoice

_WHICH_ROWS = "a table needs to know which rows were drawn"


class Table(eqx.Module):
    compact: Float[Array, "N ..."]
    row_sum: Sum
    """Σ t_i over all rows, with its rounding errors carried along: it is only ever added to."""


class SagaGradient(AbstractGradient):
    posterior: AbstractPosterior

    def start(self, position: Float[Array, " d"]) -> Table:
        compact = map_rows(lambda rows: self.posterior.row_gradients(position, rows), self.posterior.data, self.posterior.width)
        total = self.posterior.potential_and_gradient_sum(position)
        return Table(compact, Sum(total.high[1], total.low[1] - self.posterior.prior_gradient(position)))

    def refresh(self, memory: Table, position: Float[Array, " d"], step: Int[Array, ""]) -> Table:
        return memory

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.ones_like(step)

    def known(self, position: Float[Array, " d"], memory: Table) -> Float[Array, " d"]:
        return memory.row_sum.rounded() + self.posterior.prior_gradient(position)

    def residuals(
        self, position: Float[Array, " d"], rows: PyTree[Array], indices: Int[Array, " n"] | None, memory: Table
    ) -> Float[Array, "n ..."]:
        return self.posterior.row_gradients(position, rows) - _entries(memory, indices)

    def learn(self, memory: Table, batch: Batch, residuals: Float[Array, "n ..."]) -> Table:
        assert batch.indices is not None, _WHICH_ROWS
        new = _entries(memory, batch.indices) + residuals
        compact = memory.compact.at[batch.indices].set(new, mode="promise_in_bounds")
        change = self.posterior.combine(residuals, batch.rows, first_of_each(batch.indices).astype(batch.weights.dtype))
        return Table(compact, memory.row_sum.plus(change))


def _entries(memory: Table, indices: Int[Array, " n"] | None) -> Float[Array, "n ..."]:
    assert indices is not None, _WHICH_ROWS
    return memory.compact.at[indices].get(mode="promise_in_bounds")


@dataclasses.dataclass(frozen=True)
class SAGA(GradientChoice):
    """Choose control variates from a table of the gradients last seen. Memory a chain: N floats for a GLM, N·d else."""

    needs = Needs.NOTHING
    order = None
    has_memory = True

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> SagaGradient:
        return SagaGradient(posterior=posterior)
