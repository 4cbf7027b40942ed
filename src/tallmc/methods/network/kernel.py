"""The step of a sampler of communities: a few mini-batches, each of which moves a few nodes.

A mini-batch touches some nodes (`pairs.py`). From its pairs, all at the current (φ, θ),

    n̂_ak = Σ_b w_ab P(z_ab = k | y_ab)                             for each touched node a
    m̂_ki = (N/2M) Σ_a touched Σ_b w_ab 1[y_ab = i] P(z_ab = z_ba = k | y_ab)

A transition of gamma variables then moves φ_a of the touched nodes with the counts n̂_a and the
prior α, and θ with the counts m̂ and the prior η. The prior and the noise of a move are those of a
whole step: a node that is not touched does not move, and one that is touched moves as if all nodes
did (a random scan).

The loop over mini-batches is inside of a step, because the engine looks at the whole position after
each step. The cost of a mini-batch then does not grow with the number of nodes.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ...core.outcome import Outcome
from ...core.random import derived_keys, key_of, random_words
from ...dynamics.base import AbstractDynamicsState
from ...engine.kernel import AbstractReadingKernel, ChainState, Drawn, Gathered, KernelStep
from ...models.densities import DensityModel
from ...models.mixed_membership import BlockLikelihood, BlockPrior, normalised
from ...rows.base import AbstractRows
from ...schedule import AbstractSchedule
from ..simplex.transitions import AbstractGammaTransition
from .pairs import PairBatch, PairSelection


class CommunityState(AbstractDynamicsState):
    """Position (φ, θ)."""

    position: Float[Array, " d"]


class Communities(eqx.Module):
    """The weights of memberships and of strengths."""

    nodes: Float[Array, "N K"]
    """φ."""
    strengths: Float[Array, "K 2"]
    """θ; column 1 counts links."""


class ExpectedCounts(eqx.Module):
    """Unbiased estimates of the expected counts, from one mini-batch."""

    nodes: Float[Array, "M K"]
    """n̂_a of the touched nodes."""
    strengths: Float[Array, "K 2"]
    """m̂."""


class CommunityKernel(AbstractReadingKernel):
    """Moves the memberships of touched nodes, and all strengths."""

    block_model: DensityModel
    likelihood: BlockLikelihood
    prior: BlockPrior
    selection: PairSelection
    transition: AbstractGammaTransition
    schedule: AbstractSchedule
    rest: Float[Array, " d"]
    batches: int = eqx.field(static=True)
    """Mini-batches per step."""
    starts_at_counts: bool = eqx.field(static=True)
    """Whether the weights are about as large as the counts when they are stationary."""

    @property
    def model(self) -> DensityModel:
        return self.block_model

    @property
    def rows_per_step(self) -> int:
        return self.batches * self.selection.touched

    @property
    def most_rows(self) -> int:
        return self.rows_per_step

    def broken_claim(self, chains: ChainState) -> None:
        return None

    def rows_at_start(self) -> int:
        return 0

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
        if self.starts_at_counts:
            n_nodes = self.selection.n_nodes
            at = self._communities(position)
            n_communities = at.nodes.shape[1]
            prior = self.prior.concentration * n_communities, jnp.sum(self.prior.strength)
            pairs = n_nodes * (n_nodes - 1) / 2
            position = self._flat(
                Communities(
                    normalised(at.nodes) * (prior[0] + n_nodes - 1),
                    normalised(at.strengths) * (prior[1] + pairs / n_communities**2),
                )
            )
        return ChainState(CommunityState(position), None)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        return Drawn(key_of(random_words(key, (steps,))), None)

    def step(
        self,
        state: ChainState,
        gathered: Gathered,
        step: Int[Array, ""],
        source: AbstractRows,
    ) -> KernelStep:
        step_size = self.schedule(step).astype(state.position.dtype)

        def move(number: Int[Array, ""], at: Communities) -> Communities:
            key = jax.random.fold_in(gathered.selection, number)
            return self.moved(at, key, step_size, source)

        moved = lax.fori_loop(0, self.batches, move, self._communities(state.position))
        position = self._flat(moved)
        return KernelStep(
            ChainState(CommunityState(position), None),
            {},
            jnp.int32(Outcome.OK),
            jnp.zeros_like(position),
        )

    def moved(
        self,
        at: Communities,
        key: PRNGKeyArray,
        step_size: Float[Array, ""],
        source: AbstractRows,
    ) -> Communities:
        """Move by one mini-batch."""
        pairs_key, nodes_key, strengths_key = derived_keys(key, 3)
        dtype = at.nodes.dtype
        batch = self.selection.select(self.selection.draw(pairs_key), source, dtype)
        counts = self.counts(at, batch)
        of_nodes = self._move(
            at.nodes[batch.nodes], self.prior.concentration, counts.nodes, step_size, nodes_key
        )
        strengths = self._move(
            at.strengths, self.prior.strength, counts.strengths, step_size, strengths_key
        )
        return Communities(at.nodes.at[batch.nodes].set(of_nodes, unique_indices=True), strengths)

    def counts(self, at: Communities, batch: PairBatch) -> ExpectedCounts:
        """Estimate the expected counts from the pairs of a mini-batch."""
        node = normalised(at.nodes[batch.nodes])[:, None]
        partner = normalised(at.nodes[batch.partners])
        beta = normalised(at.strengths)[:, 1]
        found = self.likelihood.expectations(
            jnp.broadcast_to(node, partner.shape), partner, beta, batch.is_link
        )
        weights = batch.weights[..., None]
        of_links = jnp.where(batch.is_link[..., None], weights, 0) * found.of_both
        of_pairs = weights * found.of_both
        links, pairs = (jnp.sum(each, axis=(0, 1)) for each in (of_links, of_pairs))
        strengths = self.selection.scale * jnp.stack([pairs - links, links], axis=1)
        return ExpectedCounts(jnp.sum(weights * found.of_node, axis=1), jnp.maximum(strengths, 0))

    def _move(
        self,
        theta: Float[Array, "n k"],
        prior: Float[Array, ...],
        counts: Float[Array, "n k"],
        step_size: Float[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "n k"]:
        drawn = self.transition.draw(key, 1, theta.shape, theta.dtype)
        of_step = jax.tree.map(lambda leaf: leaf[0], drawn)
        return self.transition.move(theta, prior, counts, step_size, of_step)

    def _communities(self, position: Float[Array, " d"]) -> Communities:
        params = self.model.layout.unravel(position)
        return Communities(params["membership_weights"], params["strength_weights"])

    def _flat(self, at: Communities) -> Float[Array, " d"]:
        return jnp.concatenate([at.nodes.reshape(-1), at.strengths.reshape(-1)])
