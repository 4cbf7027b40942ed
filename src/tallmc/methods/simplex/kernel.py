"""A step on simplices: rows, expected counts, and a move of θ."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ...core.outcome import Outcome
from ...core.random import derived_keys
from ...dynamics.base import AbstractDynamicsState
from ...engine.kernel import AbstractPositionKernel, ChainState, Drawn, Gathered, KernelStep
from ...models.counts import AbstractCountsModel
from ...rows.base import AbstractRows
from ...schedule import AbstractSchedule
from ...subsample.selection import AbstractStaticSelection
from .transitions import AbstractGammaTransition


class SimplexState(AbstractDynamicsState):
    """Position θ, flat."""

    position: Float[Array, " d"]


class SimplexKernel(AbstractPositionKernel):
    """Estimates counts from the rows of a step and moves θ."""

    counts_model: AbstractCountsModel
    selection: AbstractStaticSelection
    transition: AbstractGammaTransition
    schedule: AbstractSchedule
    rest: Float[Array, " d"]

    @property
    def model(self) -> AbstractCountsModel:
        return self.counts_model

    @property
    def rows_per_step(self) -> int:
        return self.selection.size

    @property
    def rows_ahead(self) -> int:
        return self.selection.size

    @property
    def most_rows(self) -> int:
        return self.selection.size

    @property
    def renewed_every(self) -> None:
        return None

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.zeros_like(step)

    def rows_at_start(self) -> int:
        return 0

    def broken_claim(self, chains: ChainState) -> None:
        return None

    def start_memory(self, positions: Float[Array, "chains d"], source: AbstractRows) -> None:
        return None

    def init(
        self,
        key: PRNGKeyArray,
        position: Float[Array, " d"],
        memory: None,
        gathered: Gathered,
        source: AbstractRows,
    ) -> ChainState:
        return ChainState(SimplexState(position), memory)

    def renew(self, chains: ChainState, source: AbstractRows) -> ChainState:
        return chains

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        rows_key, move_key, counts_key = derived_keys(key, 3)
        shape, dtype = self.counts_model.prior.shape, self.counts_model.dtype
        moves = self.transition.draw(move_key, steps, shape, dtype)
        return Drawn(self.selection.draw(rows_key, steps), (moves, derived_keys(counts_key, steps)))

    def gather(self, drawn: Drawn, source: AbstractRows) -> Gathered:
        return Gathered(self.selection.gather(drawn.selection, source), drawn.noise)

    def step(
        self,
        state: ChainState,
        gathered: Gathered,
        step: Int[Array, ""],
        source: AbstractRows,
    ) -> KernelStep:
        model, (move, counts_key) = self.counts_model, gathered.noise
        step_size = self.schedule(step).astype(state.position.dtype)
        counts = model.expected_counts(
            model.simplex(state.position), gathered.selection, counts_key
        )
        theta = self.transition.move(
            model.theta(state.position), model.prior, counts, step_size, move
        )
        position = theta.reshape(state.position.shape)
        new = ChainState(SimplexState(position), state.memory)
        return KernelStep(new, {}, jnp.int32(Outcome.OK), jnp.zeros_like(position))
