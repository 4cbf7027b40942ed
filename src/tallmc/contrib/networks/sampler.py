"""Named methods for communities in networks."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from ..._anchor.anchor import Anchor
from ..._core.arrays import Scalar, Vector
from ..._core.errors import InvalidInput, check_int, outcome_of
from ..._core.random import derived_keys, key_of, random_words
from ..._engine.kernel import AbstractKernel, BoundKernel, ChainState, Drawn, Gathered, KernelStep
from ..._rows.access import AbstractRows
from ..._rows.law import uniform_index
from ...dynamics.dynamics import PositionState
from ...methods.abstract import AbstractMethod, PreparedMethod, RunDefaults, check_row_access
from ...methods.method import StepSize
from ...methods.registry import named
from ...models.model import DensityModel
from ...models.posterior import AbstractPosterior, check_posterior
from ...schedule import AbstractSchedule, as_schedule, in_precision
from ..simplex.transitions import (
    AbstractGammaTransition,
    CoxIngersollRoss,
    ExpandedMean,
    normalised,
)
from .model import BlockLikelihood, BlockPrior, NodeRows

# Which pairs of nodes a mini-batch reads, and their weights.
#
# A mini-batch *touches* M of the N nodes, a uniformly among them. Partners b of a touched node a
# are drawn from its n_a observed partners, of which d_a are links. Weights w_ab are unbiased given
# that a is touched, for any function g of a pair,
#
#     E[Σ_b w_ab g_ab | a touched] = Σ_b g_ab            (b over all observed partners of a)
#
# Every pair {a, b} is reached from a and from b, and a node is touched with probability M/N. With
# the scale N/(2M), sums over all pairs are therefore unbiased as well:
#
#     E[(N/2M) Σ_a touched Σ_b w_ab g_ab] = Σ_{a<b} g_ab
#
# Ways to draw partners, from m links and n non-links per node at most:
#
#     stratified     m of the links, w = d_a/m, and n of the non-links, w = (n_a − d_a)/n
#     one stratum    a coin decides between the two, and w doubles: Li, Ahn and Welling (2016)
#     uniform        m + n of all partners, w = n_a/(m + n)
#
# If a stratum has no more partners than may be drawn, it is read completely, with w = 1. Otherwise
# partners are drawn independently. With links and non-links in strata, Σ_b w_ab = n_a is constant.
# The authors divide the non-links of a node into sets and read one whole set. Their weight of a
# link, N, and of a non-link, N times the number of sets, are N/2 · w_ab here for M = 1.
#
# The nodes of a mini-batch are a random node and those at distances N/M, 2N/M, … from it: they are
# different, at a cost that does not grow with N.

SCHEMES = ("stratified", "one stratum", "uniform")


class PairWords(eqx.Module):
    """The randomness of one mini-batch."""

    start: UInt32[Array, " 2"]
    coins: UInt32[Array, " M"]
    partners: UInt32[Array, "M c 2"]


class PairBatch(eqx.Module):
    """Touched nodes with some of their partners."""

    nodes: Int[Array, " M"]
    partners: Int[Array, "M c"]
    is_link: Bool[Array, "M c"]
    weights: Float[Array, "M c"]  # w_ab; zero for entries that are not used


class PairSelection(eqx.Module):
    """Draws mini-batches of pairs."""

    n_nodes: int = eqx.field(static=True)  # N
    touched: int = eqx.field(static=True)  # M
    links: int = eqx.field(static=True)  # The most links per node
    non_links: int = eqx.field(static=True)  # The most non-links per node
    scheme: str = eqx.field(static=True)

    @property
    def scale(self) -> float:
        """N/(2M), the factor of sums over all pairs."""
        return self.n_nodes / (2 * self.touched)

    def draw(self, key: PRNGKeyArray) -> PairWords:
        """The randomness of one mini-batch."""
        start_key, coin_key, partner_key = derived_keys(key, 3)
        return PairWords(
            random_words(start_key, ()),
            random_words(coin_key, (self.touched,))[:, 0],
            random_words(partner_key, (self.touched, self.links + self.non_links)),
        )

    def select(self, words: PairWords, rows: AbstractRows, dtype: Any) -> PairBatch:
        """The pairs that these random words choose."""
        first = uniform_index(words.start, jnp.uint32(self.n_nodes))
        stride = self.n_nodes // self.touched
        nodes = (first + stride * jnp.arange(self.touched, dtype=jnp.int32)) % self.n_nodes
        block: NodeRows = rows.take(nodes)
        if self.scheme == "uniform":
            ranks, weights = _drawn(words.partners, block.n_links + block.n_non_links, dtype)
        else:
            of_links, link_weights = _drawn(words.partners[:, : self.links], block.n_links, dtype)
            others, weights = _drawn(words.partners[:, self.links :], block.n_non_links, dtype)
            if self.scheme == "one stratum":
                reads_links = (words.coins < jnp.uint32(2**31))[:, None]
                link_weights = jnp.where(reads_links, 2 * link_weights, 0)
                weights = jnp.where(reads_links, 0, 2 * weights)
            ranks = jnp.concatenate([of_links, block.n_links[:, None] + others], axis=1)
            weights = jnp.concatenate([link_weights, weights], axis=1)
        partners, is_link = block.partners(ranks)
        return PairBatch(nodes, jnp.where(weights > 0, partners, 0), is_link, weights)


def _drawn(
    words: UInt32[Array, "M c 2"], count: Int[Array, " M"], dtype: Any
) -> tuple[Int[Array, "M c"], Float[Array, "M c"]]:
    """C numbers below `count` per node, or all if there are at most c, and their weights."""
    size = words.shape[1]
    every = jnp.arange(size, dtype=jnp.int32)[None]
    count = count[:, None]
    is_complete = count <= size
    drawn = uniform_index(words, count.astype(jnp.uint32))
    ranks = jnp.where(is_complete, every, drawn)
    weights = jnp.where(is_complete, every < count, count.astype(dtype) / max(size, 1))
    return ranks, weights.astype(dtype)


# The step of a sampler of communities: a few mini-batches, each of which moves a few nodes.
#
# A mini-batch touches some nodes (`PairSelection`). From its pairs, all at the current (φ, θ),
#
#     n̂_ak = Σ_b w_ab P(z_ab = k | y_ab)                             for each touched node a
#     m̂_ki = (N/2M) Σ_a touched Σ_b w_ab 1[y_ab = i] P(z_ab = z_ba = k | y_ab)
#
# The prior and the noise of a move are those of a whole step: a node that is not touched does not
# move, and one that is touched moves as if all nodes did (a random scan).
#
# The loop over mini-batches is inside of a step, because the engine looks at the whole position
# after each step. The cost of a mini-batch then does not grow with the number of nodes.


class Communities(eqx.Module):
    """The weights of memberships and of strengths, or estimates of their expected counts."""

    nodes: Float[Array, "n K"]  # φ of all nodes, or n̂ of the touched ones
    strengths: Float[Array, "K 2"]  # θ or m̂; column 1 is about links


class CommunityKernel(AbstractKernel):
    """Moves the memberships of touched nodes, and all strengths."""

    block_model: DensityModel
    likelihood: BlockLikelihood
    prior: BlockPrior
    selection: PairSelection
    transition: AbstractGammaTransition
    schedule: AbstractSchedule
    rest: Vector
    batches: int = eqx.field(static=True)  # Mini-batches per step
    # Whether the weights are about as large as the counts when they are stationary.
    starts_at_counts: bool = eqx.field(static=True)

    @property
    def model(self) -> DensityModel:
        return self.block_model

    @property
    def rows_per_step(self) -> int:
        return self.batches * self.selection.touched

    def init(
        self,
        key: PRNGKeyArray,
        position: Vector,
        carried: None,
        gathered: Gathered,
        rows: AbstractRows,
    ) -> ChainState:
        if self.starts_at_counts:
            at = self._communities(position)
            n, k = at.nodes.shape
            of_node = self.prior.concentration * k + n - 1
            of_community = jnp.sum(self.prior.strength) + n * (n - 1) / 2 / k**2
            strengths = normalised(at.strengths) * of_community
            position = self._flat(Communities(normalised(at.nodes) * of_node, strengths))
        return ChainState(PositionState(position), None)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        return Drawn(key_of(random_words(key, (steps,))), None)

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        step_size = self.schedule(step).astype(state.position.dtype)

        def move(number: Int[Array, ""], at: Communities) -> Communities:
            key = jax.random.fold_in(gathered.selection, number)
            return self.moved(at, key, step_size, rows)

        moved = lax.fori_loop(0, self.batches, move, self._communities(state.position))
        position = self._flat(moved)
        new = ChainState(PositionState(position), None)
        return KernelStep(new, {}, outcome_of(position), jnp.zeros_like(position))

    def moved(
        self, at: Communities, key: PRNGKeyArray, step_size: Scalar, rows: AbstractRows
    ) -> Communities:
        """Move by one mini-batch."""

        def move(theta: Array, prior: Array, counts: Array, key: PRNGKeyArray) -> Array:
            drawn = self.transition.draw(key, 1, theta.shape, theta.dtype)
            of_step = jax.tree.map(lambda leaf: leaf[0], drawn)
            return self.transition.move(theta, prior, counts, step_size, of_step)

        pairs_key, nodes_key, strengths_key = derived_keys(key, 3)
        batch = self.selection.select(self.selection.draw(pairs_key), rows, at.nodes.dtype)
        counts = self.counts(at, batch)
        before = at.nodes[batch.nodes]
        of_nodes = move(before, self.prior.concentration, counts.nodes, nodes_key)
        strengths = move(at.strengths, self.prior.strength, counts.strengths, strengths_key)
        return Communities(at.nodes.at[batch.nodes].set(of_nodes, unique_indices=True), strengths)

    def counts(self, at: Communities, batch: PairBatch) -> Communities:
        """Unbiased estimates of the expected counts, from the pairs of a mini-batch."""
        node = normalised(at.nodes[batch.nodes])[:, None]
        partner = normalised(at.nodes[batch.partners])
        beta = normalised(at.strengths)[:, 1]
        of_node, of_both = self.likelihood.expectations(
            jnp.broadcast_to(node, partner.shape), partner, beta, batch.is_link
        )
        weights = batch.weights[..., None]
        link_weights = jnp.where(batch.is_link[..., None], weights, 0)
        links, pairs = (jnp.sum(w * of_both, axis=(0, 1)) for w in (link_weights, weights))
        strengths = self.selection.scale * jnp.stack([pairs - links, links], axis=1)
        return Communities(jnp.sum(weights * of_node, axis=1), jnp.maximum(strengths, 0))

    def _communities(self, position: Vector) -> Communities:
        params = self.model.layout.unravel(position)
        return Communities(params["membership_weights"], params["strength_weights"])

    def _flat(self, at: Communities) -> Vector:
        return jnp.concatenate([at.nodes.reshape(-1), at.strengths.reshape(-1)])


_TRANSITIONS: dict[str, type[AbstractGammaTransition]] = {
    "sgrld": ExpandedMean,
    "scir": CoxIngersollRoss,
}
_SCIR_STEP, _SGRLD_SHARE = 0.3, 0.03
_MOST_KEPT_FLOATS = 2**26  # Numbers of all draws that are kept in memory by default


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommunitySampler(AbstractMethod):
    """Moves the memberships of a few nodes per mini-batch; for `mixed_membership`.

    A mini-batch draws M nodes and, for each node, links and non-links. It estimates the counts of
    communities that are expected given the current memberships, and moves the weights of the M
    nodes and all strengths by a transition of gamma variables (`contrib/simplex/transitions.py`):

        φ_a ← move(φ_a; α, n̂_a),   E n̂_a = E[Σ_b 1[z_ab = k] | y, π, β],   a among M of N nodes
        θ_k ← move(θ_k; η, m̂_k),   E m̂_ki = E[Σ_{a<b} 1[z_ab = z_ba = k, y_ab = i] | y, π, β]

    SGRLD is the transition of the paper, SCIR (Baker et al., 2018) an alternative without
    discretisation error near zero. Here the M nodes alone move. The authors also move the partners
    of their nodes, each with a fresh set of partners, which takes as many pairs per moved node.

    As the step size vanishes, SGRLD leaves the posterior invariant. So does SCIR for memberships,
    since the total of the counts of a node is constant. The total m̂_k. of a community changes with
    β_k, and SCIR runs β_k at a speed in proportion to 1/θ_k., so the law of β_k is about its
    posterior times η. + m_k.(β_k). This tilt shifts β_k by a share of the order of 1/m_k. of its
    value; with four nodes it was 0.02 posterior sds (`tests/contrib/networks`).
    """

    paper = "Li, Ahn and Welling (2016)"
    bias = (
        "The noise of n̂ widens the draws in proportion to the step size. SGRLD has a "
        "discretisation error near zero; SCIR shifts β_k by a share of the order of 1/m_k. of its "
        "value, which does not vanish with ε."
    )
    cost = (
        "O(K) per pair, and at most M times the numbers of links and of non-links pairs per "
        "mini-batch, whatever the number of nodes. A step consists of N/M mini-batches, about one "
        "move per node."
    )
    uses_gradients = False

    step_size: StepSize | None = None
    process: str = "scir"
    nodes: int = 32
    links: int = 32
    non_links: int = 32
    scheme: str = "stratified"
    batches: int | None = None

    def __post_init__(self) -> None:
        if self.step_size is not None:
            as_schedule(self.step_size)
        for parameter, value, known in (
            ("process", self.process, tuple(_TRANSITIONS)),
            ("scheme", self.scheme, SCHEMES),
        ):
            if value not in known:
                raise InvalidInput(parameter, f"be one of {', '.join(map(repr, known))}", value)
        for parameter in ("nodes", "links", "non_links"):
            check_int(parameter, getattr(self, parameter), 1)
        if self.batches is not None:
            check_int("batches", self.batches, 1)

    def defaults(self, dim: int) -> RunDefaults:
        draws = min(1000, max(25, _MOST_KEPT_FLOATS // (4 * dim)))
        return RunDefaults(chains=4, draws=draws, ess=None)

    @property
    def axes(self) -> dict[str, str]:
        return {
            "dynamics": _TRANSITIONS[self.process].__name__,
            "gradient": "expected counts",
            "subsample": f"nodes and pairs, {self.scheme}",
            "size": "per node",
        }

    def step_size_for(self, prior: BlockPrior, n_nodes: int, n_communities: int) -> StepSize:
        """The step size, or one that fits the size of the weights.

        A step of SGRLD pulls the memberships of a node by the share (ε/2)(N − 1)/φ. towards its
        counts. φ. is about Kα, and often far below. In the karate club chains stay in the factions
        at this step size, 0.0009, as they do at 0.0003; at 0.01 they leave them.
        """
        if self.step_size is not None:
            return self.step_size
        if self.process == "scir":  # its weights are about as large as the counts
            return _SCIR_STEP
        of_node = n_communities * float(prior.concentration)
        return _SGRLD_SHARE * min(1.0, of_node) / (n_nodes - 1)

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Check that the posterior is that of a network."""
        check_posterior(posterior)
        model = posterior.model
        if not (
            isinstance(model, DensityModel)
            and isinstance(model.log_likelihood, BlockLikelihood)
            and isinstance(model.log_prior, BlockPrior)
        ):
            cure = "For other models see tallmc.methods.METHODS."
            rule = "be a network of tallmc.contrib.networks.mixed_membership for this method"
            raise InvalidInput("posterior", rule, type(model).__name__, cure)
        check_row_access(self, posterior)
        n_nodes, longest = posterior.n_rows, posterior.data.links.shape[1]
        touched = min(self.nodes, n_nodes)
        links, non_links = min(self.links, longest), min(self.non_links, n_nodes - 1)
        step_size = self.step_size_for(model.log_prior, *model.layout.shapes[0])
        kernel = CommunityKernel(
            block_model=model,
            likelihood=model.log_likelihood,
            prior=model.log_prior,
            selection=PairSelection(n_nodes, touched, links, non_links, self.scheme),
            transition=_TRANSITIONS[self.process](),
            schedule=in_precision(as_schedule(step_size), posterior.dtype),
            rest=posterior.init,
            batches=-(-n_nodes // touched) if self.batches is None else self.batches,
            starts_at_counts=self.process == "scir",
        )
        return PreparedMethod(BoundKernel(kernel, posterior), None, 0)


@named("Li, Ahn and Welling (2016), with SCIR for SGRLD")
def mmsb_scir(
    step_size: StepSize | None = None,
    nodes: int = 32,
    links: int = 32,
    non_links: int = 32,
    *,
    scheme: str = "stratified",
    batches: int | None = None,
) -> CommunitySampler:
    """Communities of a network by the Cox–Ingersoll–Ross process, a few nodes at a time.

    For `mixed_membership`. Steps near 1 are stable; None means 0.3.

    - `nodes`: M, the nodes per mini-batch, or all if the network has fewer.
    - `links`, `non_links`: the most links and non-links that are read per node.
    - `scheme`: "stratified", "one stratum" (as in the paper) or "uniform".
    - `batches`: mini-batches per step. None for N/M, so that a step moves each node about once.
    """
    return CommunitySampler(
        step_size=step_size,
        process="scir",
        nodes=nodes,
        links=links,
        non_links=non_links,
        scheme=scheme,
        batches=batches,
    )


@named("Li, Ahn and Welling (2016)")
def mmsb_sgrld(
    step_size: StepSize | None = None, *settings: int, **options: Any
) -> CommunitySampler:
    """Communities of a network by SGRLD in the expanded mean, a few nodes at a time.

    The settings are those of `mmsb_scir`. None means a step size of 0.03 Kα/(N − 1) for N nodes:
    larger steps leave communities that the posterior has.
    """
    return dataclasses.replace(mmsb_scir(step_size, *settings, **options), process="sgrld")
