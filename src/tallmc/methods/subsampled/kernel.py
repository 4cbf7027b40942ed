"""The step of Metropolis–Hastings with scalable subsampling."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ...core.arrays import on_device
from ...core.outcome import Outcome
from ...core.random import derived_keys, key_of, random_words, standard_normal
from ...dynamics.base import AbstractDynamicsState
from ...engine.kernel import AbstractReadingKernel, ChainState, Drawn, Gathered, KernelStep
from ...models.base import AbstractModel
from ...rows.base import AbstractRows
from ...schedule import AbstractSchedule
from .decision import AbstractDecision, Move
from .proposals import AbstractProposal
from .surrogate import Surrogate


class SubsampledState(AbstractDynamicsState):
    """Position θ = θ̂ + Cu."""

    position: Float[Array, " d"]
    whitened: Float[Array, " d"]
    """u."""
    excess: Float[Array, ""]
    """e(u)."""


class Breaches(eqx.Module):
    """How often the steps of a chain left the bounds."""

    exceeded: Int[Array, "*chains"]
    """Rows whose change was above their cap."""
    worst: Float[Array, "*chains"]
    """The largest change, relative to its cap."""
    outside: Int[Array, "*chains"]
    """Moves that were rejected because there is no bound for them."""


class SubsampledKernel(AbstractReadingKernel):
    """Proposes a move of the surrogate, and decides from a few rows."""

    surrogate: Surrogate
    proposal: AbstractProposal
    decision: AbstractDecision
    schedule: AbstractSchedule
    rest: Float[Array, " d"]

    @property
    def model(self) -> AbstractModel:
        return self.surrogate.remainders.model

    @property
    def rows_per_step(self) -> None:
        return None

    @property
    def most_rows(self) -> int:
        return self.n_certain + self.decision.most_rows

    @property
    def n_certain(self) -> int:
        """Rows that every step evaluates."""
        return int(self.surrogate.certain.shape[0])

    def rows_at_start(self) -> int:
        return self.n_certain

    def broken_claim(self, chains: ChainState) -> str | None:
        exceeded, outside = (
            int(np.asarray(counts, np.int64).sum())
            for counts in (chains.memory.exceeded, chains.memory.outside)
        )
        if exceeded:
            worst = float(np.max(chains.memory.worst))
            return (
                f"{exceeded:,} evaluated rows changed by more than their caps, at most by "
                f"{worst:.2g} times: the draws are not exact. Use larger caps, or a larger bound."
            )
        if outside:
            return (
                f"{outside:,} proposals were outside the region where the rows have a bound and "
                "were rejected: the draws are those of the posterior inside that region."
            )
        return None

    def start_memory(self, positions: Float[Array, "chains d"], source: AbstractRows) -> Breaches:
        none = np.zeros(len(positions))
        counts = on_device(none, np.int32)
        return Breaches(counts, on_device(none, positions.dtype), counts)

    def init(
        self,
        key: PRNGKeyArray,
        position: Float[Array, " d"],
        memory: Breaches,
        gathered: Gathered,
        source: AbstractRows,
    ) -> ChainState:
        u = self.surrogate.metric.solve(position - self.surrogate.anchor)
        return ChainState(SubsampledState(position, u, self.surrogate.excess(u, source)), memory)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        normal_key, uniform_key, rows_key = derived_keys(key, 3)
        like = self.model.init
        normal = standard_normal(normal_key, (steps, *like.shape), like.dtype)
        uniform = -jax.random.exponential(uniform_key, (steps,), like.dtype)
        return Drawn(key_of(random_words(rows_key, (steps,))), (normal, uniform))

    def step(
        self,
        state: ChainState,
        gathered: Gathered,
        step: Int[Array, ""],
        source: AbstractRows,
    ) -> KernelStep:
        surrogate, here = self.surrogate, state.motion.whitened
        normal, log_uniform = gathered.noise
        step_size = self.schedule(step).astype(here.dtype)
        there = self.proposal.propose(surrogate, here, step_size, normal)
        excess = surrogate.excess(there, source)
        moves = surrogate.metric.push(jnp.stack([here, there]))
        move = Move(
            here=here,
            there=there,
            moves=moves,
            log_known=self.proposal.log_ratio(surrogate, here, there, step_size)
            - (excess - state.motion.excess),
            log_uniform=log_uniform,
        )
        decided = self.decision.decide(surrogate.remainders, move, gathered.selection, source)
        candidate = SubsampledState(surrogate.anchor + moves[1], there, excess)
        motion = jax.tree.map(
            lambda new, old: jnp.where(decided.accept, new, old), candidate, state.motion
        )
        memory = Breaches(
            state.memory.exceeded + decided.exceeded,
            jnp.maximum(state.memory.worst, decided.worst),
            state.memory.outside + decided.outside.astype(jnp.int32),
        )
        stats = {
            "acceptance_rate": decided.rate,
            "batch_size": decided.n_rows + jnp.int32(self.n_certain),
        }
        return KernelStep(
            ChainState(motion, memory), stats, jnp.int32(Outcome.OK), jnp.zeros_like(here)
        )
