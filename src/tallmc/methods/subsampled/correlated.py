"""The step of block pseudo-marginal Metropolis–Hastings: rows are part of the state.

The state has the position u and the numbers of m rows, drawn with replacement with probabilities p.
The potential at u is ½‖u‖² + e(u) + Ŝ, with the certain part e of `surrogate.py` and

    Ŝ = D̂ + ½σ̂²,   D̂ = (1/m) Σ_j z_j,   z_j = R_{i_j}(u)/p_{i_j},
    σ̂² = Σ_j (z_j − D̂)² / (m(m − 1)).

D̂ is the difference estimator of ΣR_i. Without ½σ̂², exp(−D̂) would exceed exp(−ΣR_i) by a factor of
about exp(½σ²) on average. A proposal is a new position and new draws in one block of rows, so Ŝ
changes little when the position does. The law of the draws is p in every block, and the accept step
is that of the joint law of positions and draws.

Proposals with ‖u‖ > r are rejected. Far from the anchor R_i tends to −½f_i″(w_iᵀu)². If all m draws
are of one row with f_i″‖w_i‖² > p_i, then σ̂² = 0 and exp(−½‖u‖² − Ŝ) grows without a limit. On all
of space the perturbed posterior is then not proper, however large m is. A Gaussian position is
beyond r with a probability of 10⁻¹⁰.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ...core.arrays import on_device
from ...core.outcome import Outcome
from ...core.random import derived_keys, key_of, random_words, standard_normal
from ...dynamics.base import AbstractDynamicsState
from ...engine.kernel import AbstractReadingKernel, ChainState, Drawn, Gathered, KernelStep
from ...models.base import AbstractModel
from ...rows.base import AbstractRows
from ...rows.stream import AbstractStream
from ...schedule import AbstractSchedule
from .proposals import AbstractProposal
from .surrogate import Surrogate


class CorrelatedState(AbstractDynamicsState):
    """Position θ = θ̂ + Cu, and the rows that estimate the potential there."""

    position: Float[Array, " d"]
    whitened: Float[Array, " d"]
    """u."""
    indices: Int[Array, " m"]
    weights: Float[Array, " m"]
    """1/p of the rows."""
    potential: Float[Array, ""]
    """e(u) + Ŝ."""
    variance: Float[Array, ""]
    """σ̂²."""


class CorrelatedKernel(AbstractReadingKernel):
    """Proposes a move of the surrogate and new rows in one block."""

    surrogate: Surrogate
    proposal: AbstractProposal
    stream: AbstractStream
    size: int = eqx.field(static=True)
    """m."""
    block: int = eqx.field(static=True)
    """Rows per block. If this is no divisor of m, the last block has rows of the one before it."""
    radius: Float[Array, ""]
    """r."""
    schedule: AbstractSchedule
    rest: Float[Array, " d"]

    @property
    def model(self) -> AbstractModel:
        return self.surrogate.remainders.model

    @property
    def rows_per_step(self) -> int:
        return self.size

    @property
    def most_rows(self) -> int:
        return self.size

    def rows_at_start(self) -> int:
        return self.size

    def broken_claim(self, chains: ChainState) -> str | None:
        outside = int(np.asarray(chains.memory, np.int64).sum())
        if not outside:
            return None
        return (
            f"{outside:,} proposals were rejected because they were more than "
            f"{float(self.radius):.3g} standard deviations from the anchor, where estimates of the "
            "likelihood are not reliable. Use mala(...), which has no such limit."
        )

    def start_memory(
        self, positions: Float[Array, "chains d"], source: AbstractRows
    ) -> Int[Array, " chains"]:
        """How many proposals were beyond the radius."""
        return on_device(np.zeros(len(positions)), np.int32)

    def init(
        self,
        key: PRNGKeyArray,
        position: Float[Array, " d"],
        memory: Int[Array, ""],
        gathered: Gathered,
        source: AbstractRows,
    ) -> ChainState:
        u = self.surrogate.metric.solve(position - self.surrogate.anchor)
        draws = self.stream.draw(key, (self.size,))
        return ChainState(self.state_at(u, draws.indices, draws.weights, source), memory)

    def state_at(
        self,
        u: Float[Array, " d"],
        indices: Int[Array, " m"],
        weights: Float[Array, " m"],
        source: AbstractRows,
    ) -> CorrelatedState:
        """The state with these rows; this evaluates them."""
        move = self.surrogate.metric.push(u)
        (values,) = self.surrogate.remainders.values(move[None], source.take(indices))
        estimate, variance = self.corrected(values * weights)
        potential = self.surrogate.excess(u, source) + estimate
        position = self.surrogate.anchor + move
        return CorrelatedState(position, u, indices, weights, potential, variance)

    def corrected(self, z: Float[Array, " m"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Ŝ and σ̂²."""
        mean = jnp.mean(z)
        variance = jnp.sum((z - mean) ** 2) / (self.size * (self.size - 1))
        return mean + variance / 2, variance

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
        here = state.motion
        normal, log_uniform = gathered.noise
        step_size = self.schedule(step).astype(normal.dtype)
        there = self.proposal.propose(self.surrogate, here.whitened, step_size, normal)
        candidate = self.state_at(there, *self._redrawn(here, gathered.selection), source)
        known = self.proposal.log_ratio(self.surrogate, here.whitened, there, step_size)
        log_ratio = known - (candidate.potential - here.potential)
        outside = ~(jnp.linalg.norm(there) <= self.radius)
        log_ratio = jnp.where(outside, -jnp.inf, log_ratio)
        motion = jax.tree.map(
            lambda new, old: jnp.where(log_uniform < log_ratio, new, old), candidate, here
        )
        stats = {
            "acceptance_rate": jnp.exp(jnp.minimum(log_ratio, 0)),
            "potential_variance": motion.variance,
        }
        memory = state.memory + outside.astype(jnp.int32)
        outcome = jnp.int32(Outcome.OK)
        return KernelStep(ChainState(motion, memory), stats, outcome, jnp.zeros_like(there))

    def _redrawn(
        self, state: CorrelatedState, key: PRNGKeyArray
    ) -> tuple[Int[Array, " m"], Float[Array, " m"]]:
        """The rows of the state with new ones in one block, and 1/p."""
        rows_key, block_key = derived_keys(key, 2)
        number = jax.random.randint(block_key, (), 0, -(-self.size // self.block))
        # The last block starts earlier if there are not enough rows left.
        start = (number * self.block,)
        new = self.stream.draw(rows_key, (self.block,))
        return (
            lax.dynamic_update_slice(state.indices, new.indices, start),
            lax.dynamic_update_slice(state.weights, new.weights, start),
        )
