"""The assortative mixed-membership stochastic block model (a-MMSB) of a network.

    π_a ~ Dirichlet(α, …, α)          memberships of node a in K communities
    β_k ~ Beta(η₁, η₀)                strength of community k
    z_ab ~ π_a,   z_ba ~ π_b          for each pair of nodes a < b
    y_ab ~ Bernoulli(β_k) if z_ab = z_ba = k, else Bernoulli(δ)

Gopalan et al. (2012); Li, Ahn and Welling (2016). The latent z_ab are summed out. With
B_k = β_k^y (1 − β_k)^(1−y) and D = δ^y (1 − δ)^(1−y),

    p(y_ab | π, β) = Σ_k π_ak [π_bk B_k + (1 − π_bk) D]
    P(z_ab = k | y_ab, π, β) = π_ak [π_bk B_k + (1 − π_bk) D]/p(y_ab | π, β)
    P(z_ab = z_ba = k | y_ab, π, β) = π_ak π_bk B_k/p(y_ab | π, β)

so the expected counts of a pair take O(K) operations, not K². A position holds positive weights,
π_a = φ_a/Σφ_a and β_k = θ_k1/(θ_k0 + θ_k1), with the priors φ_ak ~ Gamma(α, 1) and
θ_ki ~ Gamma(η_i, 1) of the expanded mean.

A row of the posterior is a node. Its likelihood is that of its pairs with nodes of larger numbers,
so that every observed pair counts once. Communities are known up to their order.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray, PyTree, UInt32

from .._anchor.anchor import Anchor
from .._core.arrays import ComputedQuantities, Scalar, Vector, check_numeric, layout_of
from .._core.errors import InvalidInput, check_int, check_number, outcome_of
from .._core.random import derived_keys, random_words
from .._engine.kernel import AbstractKernel, BoundKernel, ChainState, Gathered, KernelStep, NewChain
from .._rows.access import AbstractRows, PerRow
from .._rows.law import uniform_index
from .._rows.resident import ResidentRows, resident
from ..dynamics.dynamics import PositionState
from ..methods.abstract import AbstractMethod, PreparedMethod, RunDefaults, check_row_access, labels
from ..methods.method import StepSize
from ..methods.registry import named
from ..models.model import DensityModel
from ..models.posterior import AbstractPosterior, ModelPosterior, check_posterior
from ..models.predictive import AbstractPredictive, split_response
from ..results.draws import Draws
from ..results.prediction import DrawnLaw, used_draws
from ..schedule import AbstractSchedule, as_schedule, in_precision
from .simplex import AbstractGammaTransition, CoxIngersollRoss, ExpandedMean, normalised

__all__ = [
    "HeldOutPairs",
    "held_out_pairs",
    "link_perplexity",
    "mixed_membership",
    "mmsb_scir",
    "mmsb_sgrld",
]

# The rows of a network: one row per node, with its links.
#
# A pair of nodes {a, b} is linked, not linked, or held out. Only links and held-out pairs are
# stored. Row a lists the nodes e₀ < e₁ < … that are no observed non-links of a: its links, its
# held-out partners and a itself. The r-th observed non-link of a is then found by a search in a
# sorted list,
#
#     b = r + #{j : e_j − j ≤ r},   r = 0, …, n_nodes − 1 − #{e_j}
#
# Lists are padded to the longest, so memory is n_nodes times the largest number of links.

_MOST_NODES = 2**30


class NodeRows(NamedTuple):
    """Nodes with their links."""

    number: Int[Array, "*n"]  # The node
    links: Int[Array, "*n L"]  # Its links, padded with n_nodes
    n_links: Int[Array, "*n"]
    excluded: Int[Array, "*n E"]  # e_j in increasing order, padded with n_nodes + j
    n_non_links: Int[Array, "*n"]  # How many other nodes are observed not to be linked

    def partners(self, ranks: Int[Array, "n c"]) -> tuple[Int[Array, "n c"], Bool[Array, "n c"]]:
        """The observed partners with these numbers, links first, and whether they are links.

        Numbers out of range give any node.
        """
        is_link = ranks < self.n_links[:, None]
        places = jnp.minimum(ranks, self.links.shape[1] - 1)
        link = jnp.take_along_axis(self.links, places, axis=1, mode="clip")
        shifted = self.excluded - jnp.arange(self.excluded.shape[1])
        among_non_links = ranks - self.n_links[:, None]
        search = jax.vmap(lambda sorted_, r: jnp.searchsorted(sorted_, r, side="right"))
        before = search(shifted, among_non_links)
        return jnp.where(is_link, link, among_non_links + before.astype(ranks.dtype)), is_link

    def observed(self, n_nodes: int) -> tuple[Bool[Array, "n N"], Bool[Array, "n N"]]:
        """Whether each node is linked to each of the N nodes, and whether that is observed."""
        at = jnp.arange(self.number.shape[0])[:, None]
        nobody = jnp.zeros((self.number.shape[0], n_nodes), bool)
        linked = nobody.at[at, self.links].set(True, mode="drop")
        excluded = nobody.at[at, self.excluded].set(True, mode="drop")
        return linked, linked | ~excluded


def node_rows(
    edges: ArrayLike, n_nodes: int | None, held_out: ArrayLike | None
) -> tuple[NodeRows, int]:
    """The rows of a network, and its number of nodes; arguments as in `mixed_membership`."""
    links, count = undirected(edges, n_nodes)
    hidden = np.zeros((0, 2), np.int64) if held_out is None else _pairs("held_out", held_out, count)
    codes = _codes(hidden, count)
    if np.unique(codes).size < codes.size:
        raise InvalidInput("held_out", "list every pair once", _repeated(hidden, codes))
    seen = links[~np.isin(_codes(links, count), codes)]
    if not seen.size:
        raise InvalidInput("edges", "have a link that is not held out", "none")
    nodes = np.arange(count)
    of_links, n_links = _lists(_both_ways(seen), count)
    own = np.stack([nodes, nodes], axis=1)
    left_out = np.concatenate([_both_ways(seen), _both_ways(hidden), own])
    excluded, n_excluded = _lists(left_out, count)
    places = np.arange(excluded.shape[1])
    excluded = np.where(places >= n_excluded[:, None], count + places, excluded)
    columns = (nodes, of_links, n_links, excluded, count - n_excluded)
    return NodeRows(*(jnp.asarray(column, jnp.int32) for column in columns)), count


def undirected(edges: ArrayLike, n_nodes: int | None) -> tuple[np.ndarray, int]:
    """Each link once, as (smaller, larger) numbers of nodes, and the number of nodes."""
    given = _pairs("edges", edges, n_nodes)
    count = int(given.max()) + 1 if n_nodes is None else int(n_nodes)
    directed = given[:, 0] * count + given[:, 1]
    if np.unique(directed).size < directed.size:
        rule = "list every link once, or once in each direction"
        cure = "Remove repeated links: np.unique(edges, axis=0)."
        raise InvalidInput("edges", rule, _repeated(given, directed), cure)
    codes = np.unique(_codes(given, count))
    return np.stack([codes // count, codes % count], axis=1), count


class HeldOutPairs(NamedTuple):
    """Pairs of nodes to predict."""

    pairs: Int[np.ndarray, "n 2"]
    links: Int[np.ndarray, " n"]
    """1 for a link, 0 for a non-link."""


def held_out_pairs(
    edges: ArrayLike, n_nodes: int | None = None, *, fraction: float = 0.1, seed: int = 0
) -> HeldOutPairs:
    """Choose links at random, and as many pairs that are not linked.

    **Arguments:**

    - `edges`, `n_nodes`: the network, as in `mixed_membership`.
    - `fraction`: the share of the links that is chosen.
    - `seed`: seed of the choice.

    **Returns:** `HeldOutPairs`, whose `pairs` are the argument `held_out` of `mixed_membership` and
    which `link_perplexity` takes.
    """
    links, count = undirected(edges, n_nodes)
    share = check_number("fraction", fraction, 0, 1, low_open=True, high_open=True)
    n_chosen = max(1, round(share * len(links)))
    rng = np.random.default_rng(check_int("seed", seed, 0))
    if count * (count - 1) // 2 - len(links) < 2 * n_chosen:
        rule = "leave twice as many pairs without a link as are held out"
        raise InvalidInput("fraction", rule, fraction, "Choose a smaller fraction.")
    linked, chosen = set(_codes(links, count).tolist()), links[rng.permutation(len(links))]
    others: dict[int, None] = {}
    while len(others) < n_chosen:
        a, b = sorted(rng.integers(0, count, 2).tolist())
        if a != b and a * count + b not in linked:
            others[a * count + b] = None
    codes = np.array(list(others))
    non_links = np.stack([codes // count, codes % count], axis=1)
    pairs = np.concatenate([chosen[:n_chosen], non_links])
    return HeldOutPairs(pairs, np.repeat([1, 0], n_chosen))


def _pairs(parameter: str, given: ArrayLike, n_nodes: int | None) -> np.ndarray:
    """Pairs of different nodes, (n, 2) numbers in range."""
    values = np.asarray(check_numeric(parameter, given))
    if values.ndim != 2 or values.shape[1] != 2 or not values.size:
        rule = "be pairs of numbers of nodes, an (n, 2) array"
        cure = "For a networkx graph: np.array(networkx.convert_node_labels_to_integers(g).edges)."
        raise InvalidInput(parameter, rule, f"shape {values.shape}", cure)
    numbers = values.astype(np.int64)
    broken = values[numbers != values]
    if broken.size:
        raise InvalidInput(parameter, "hold whole numbers of nodes", float(broken[0]))
    most = _MOST_NODES if n_nodes is None else check_int("n_nodes", n_nodes, 2, _MOST_NODES)
    bad = (numbers < 0) | (numbers >= most)
    if bad.any():
        last = "" if n_nodes is None else f" to n_nodes − 1 = {most - 1}"
        raise InvalidInput(parameter, f"number the nodes from 0{last}", int(numbers[bad][0]))
    loops = numbers[:, 0] == numbers[:, 1]
    if loops.any():
        cure = "Remove links of a node with itself: the model has none."
        rule = "be pairs of different nodes"
        raise InvalidInput(parameter, rule, tuple(numbers[loops][0].tolist()), cure)
    return numbers


def _codes(pairs: np.ndarray, n_nodes: int) -> np.ndarray:
    """One number per unordered pair."""
    return pairs.min(axis=1, initial=n_nodes) * n_nodes + pairs.max(axis=1, initial=0)


def _repeated(pairs: np.ndarray, codes: np.ndarray) -> str:
    order = np.argsort(codes, kind="stable")
    first = order[:-1][np.diff(codes[order]) == 0][0]
    return f"the pair {tuple(pairs[first].tolist())} twice"


def _both_ways(pairs: np.ndarray) -> np.ndarray:
    return np.concatenate([pairs, pairs[:, ::-1]])


def _lists(directed: np.ndarray, n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """The sorted partners of every node, padded with `n_nodes`, and their number."""
    ordered = directed[np.lexsort((directed[:, 1], directed[:, 0]))]
    counts = np.bincount(ordered[:, 0], minlength=n_nodes)
    lists = np.full((n_nodes, max(1, int(counts.max()))), n_nodes)
    place = np.arange(len(ordered)) - np.repeat(np.cumsum(counts) - counts, counts)
    lists[ordered[:, 0], place] = ordered[:, 1]
    return lists, counts


_BACKGROUND_SHARE = 0.1


class BlockParameters(NamedTuple):
    """What the positions of the model mean."""

    memberships: Float[Array, "N K"]  # π
    strengths: Float[Array, " K"]  # β

    @classmethod
    def of(cls, params: PyTree) -> BlockParameters:
        """Normalise the weights φ and θ."""
        weights, pairs = params["membership_weights"], params["strength_weights"]
        return cls(normalised(weights), normalised(pairs)[..., 1])


KVectors = Float[Array, "*n K"]
KVector = Float[Array, " K"]


class BlockLikelihood(eqx.Module):
    """p(y_ab | π, β)."""

    background: Scalar  # δ

    def expectations(
        self, node: KVectors, partner: KVectors, beta: KVector, is_link: Bool[Array, "*n"]
    ) -> tuple[KVectors, KVectors]:
        """P(z_ab = k | y_ab) and P(z_ab = z_ba = k | y_ab), from π_a (`node`) and π_b."""
        y = is_link[..., None]
        same = jnp.where(y, beta, 1 - beta)
        different = jnp.where(y, self.background, 1 - self.background)
        of_both = node * partner * same
        of_node = of_both + node * (1 - partner) * different
        total = jnp.sum(of_node, axis=-1, keepdims=True)
        return of_node / total, of_both / total

    def chance(self, node: KVectors, partner: KVectors, strengths: KVector) -> Float[Array, "*n"]:
        """P(y_ab = 1 | π, β)."""
        together = node * partner
        return self.background * (1 - jnp.sum(together, axis=-1)) + together @ strengths

    def __call__(self, params: PyTree, block: NodeRows) -> PerRow:
        """The log-likelihood of the pairs of each node with nodes of larger numbers."""
        at = BlockParameters.of(params)
        n_nodes = at.memberships.shape[0]
        own = at.memberships[block.number]
        chance = self.background + (own * (at.strengths - self.background)) @ at.memberships.T
        is_link, is_observed = block.observed(n_nodes)
        counted = is_observed & (jnp.arange(n_nodes) > block.number[:, None])
        of_pairs = jnp.log(jnp.where(is_link, chance, 1 - chance))
        return jnp.sum(jnp.where(counted, of_pairs, 0), axis=1)


class BlockPrior(eqx.Module):
    """log p(φ, θ): independent gamma densities."""

    concentration: Scalar  # α
    strength: Float[Array, " 2"]  # (η₀, η₁), of non-links and of links

    def __call__(self, params: PyTree) -> Scalar:
        phi, theta = params["membership_weights"], params["strength_weights"]
        of_nodes = jnp.sum((self.concentration - 1) * jnp.log(phi) - phi)
        return of_nodes + jnp.sum((self.strength - 1) * jnp.log(theta) - theta)


class LinkRows(NamedTuple):
    """Pairs of nodes, and whether they are linked."""

    pairs: Int[Array, "n 2"]
    links: PerRow  # NaN if it is not known


class LinkPredictive(AbstractPredictive):
    """The law of the link of a pair of nodes."""

    model: DensityModel
    likelihood: BlockLikelihood

    response_name = "link"

    def encoded(self, new_rows: Any, response: bool) -> LinkRows:
        if isinstance(new_rows, LinkRows):
            return new_rows
        pairs, links = split_response(new_rows, response, "be a tuple (pairs, links)")
        n_nodes, dtype = self.model.layout.shapes[0][0], self.model.dtype
        checked = jnp.asarray(_pairs("pairs", pairs, n_nodes), jnp.int32)
        if links is None:
            return LinkRows(checked, jnp.full(len(checked), jnp.nan, dtype))
        values = np.asarray(check_numeric("links", links), float)
        if values.shape != (len(checked),) or not np.isin(values, (0, 1)).all():
            rule = f"be 0 or 1 for each of the {len(checked)} pairs"
            raise InvalidInput("links", rule, f"shape {values.shape}")
        return LinkRows(checked, jnp.asarray(values, dtype))

    def observed(self, block: LinkRows) -> PerRow:
        return block.links

    def mean(self, position: Vector, block: LinkRows) -> PerRow:
        at = BlockParameters.of(self.model.layout.unravel(position))
        node, partner = (at.memberships[block.pairs[:, side]] for side in (0, 1))
        return self.likelihood.chance(node, partner, at.strengths)

    def simulate(self, key: PRNGKeyArray, position: Vector, block: LinkRows) -> PerRow:
        chance = self.mean(position, block)
        return jax.random.bernoulli(key, chance).astype(chance.dtype)

    def log_likelihood(self, position: Vector, block: LinkRows) -> PerRow:
        chance = self.mean(position, block)
        return jnp.log(jnp.where(block.links == 1, chance, 1 - chance))


def mixed_membership(
    edges: ArrayLike,
    n_nodes: int | None = None,
    n_communities: int = 2,
    *,
    held_out: ArrayLike | None = None,
    concentration: float | None = None,
    strength_prior: tuple[float, float] = (1.0, 1.0),
    background: float | None = None,
    seed: int = 0,
) -> ModelPosterior:
    """Communities in a network: each node is a member of several, to different degrees.

    Sample it with `mmsb_scir` or `mmsb_sgrld`, which move a few nodes per mini-batch.

    **Arguments:**

    - `edges`: the links, an (n, 2) array of numbers of nodes, from 0. The network is undirected; a
      link may be listed once, or in both directions. No node is linked to itself.
    - `n_nodes`: the number of nodes; by default one more than the largest number in `edges`.
    - `n_communities`: K.
    - `held_out`: pairs of nodes, an (n, 2) array, that the likelihood leaves out, such as
      `held_out_pairs(edges).pairs`.
    - `concentration`: α; by default 1/K.
    - `strength_prior`: (η₁, η₀) of the Beta prior of the strengths.
    - `background`: δ, the probability of a link between members of different communities. By
      default a tenth of the share of linked pairs.
    - `seed`: seed of the memberships at which chains start. With equal memberships in all
      communities, chains would start at a saddle point.

    **Returns:** a posterior with the quantities `memberships` (nodes × K) and `strengths` (K).
    `draws.predict(pairs)` gives probabilities of links.
    """
    rows, count = node_rows(edges, n_nodes, held_out)
    k = check_int("n_communities", n_communities, 2)
    alpha = 1 / k if concentration is None else concentration
    alpha = check_number("concentration", alpha, 0, low_open=True)
    if np.shape(strength_prior) != (2,):
        raise InvalidInput("strength_prior", "be two numbers (η₁, η₀)", strength_prior)
    etas = [check_number("strength_prior", eta, 0, low_open=True) for eta in strength_prior]
    if background is None:
        n_links, n_non_links = (
            float(np.asarray(counts, np.float64).sum())
            for counts in (rows.n_links, rows.n_non_links)
        )
        background = _BACKGROUND_SHARE * n_links / (n_links + n_non_links)
    delta = check_number("background", background, 0, 1, low_open=True, high_open=True)
    # Chains start at memberships from a flat Dirichlet law, and strengths at their prior mean.
    memberships = np.random.default_rng(check_int("seed", seed, 0)).dirichlet(np.ones(k), count)
    start = {
        "membership_weights": jnp.asarray(k * alpha * memberships, float),
        "strength_weights": jnp.asarray(np.tile(etas[::-1], (k, 1)), float),
    }
    layout, init = layout_of(start)
    likelihood = BlockLikelihood(jnp.asarray(delta, init.dtype))
    prior = BlockPrior(jnp.asarray(alpha, init.dtype), jnp.asarray(etas[::-1], init.dtype))
    model = DensityModel(
        log_likelihood=likelihood, batched=True, log_prior=prior, init=init, layout=layout
    )

    def quantities(position: Vector) -> dict[str, Array]:
        return BlockParameters.of(layout.unravel(position))._asdict()

    dims = {"memberships": ("node", "community"), "strengths": ("community",)}
    shown = ComputedQuantities(quantities, layout.dim, dims, {})
    description = {
        "family": "mixed-membership stochastic block model",
        "communities": str(k),
        "background": f"{delta:.3g}",
    }
    predictive = LinkPredictive(model, likelihood)
    return ModelPosterior(model, resident(rows), shown, predictive, description)


# How well draws predict links of a network that they have not seen.
#
#     perplexity = exp(−(1/n) Σ_{pairs (a,b)} log (1/T) Σ_t p(y_ab | π_t, β_t))
#
# Li, Ahn and Welling (2016), section 5: the probability of a pair is averaged over draws before its
# logarithm is taken. It is 1 for perfect predictions, and 2 for a coin.


def link_perplexity(draws: Draws, pairs: ArrayLike, links: ArrayLike) -> float:
    """The perplexity of held-out pairs of nodes; smaller is better.

    **Arguments:**

    - `draws`: draws of `mixed_membership`.
    - `pairs`: pairs of nodes, (n, 2).
    - `links`: 1 for each pair that is linked, 0 for the others.

    **Returns:** the perplexity, at least 1.

    >>> import tallmc
    >>> edges = [[0, 1], [0, 2], [1, 2], [2, 3], [3, 4]]
    >>> posterior = tallmc.contrib.networks.mixed_membership(edges, held_out=[[3, 4], [0, 4]])
    >>> method = tallmc.contrib.networks.mmsb_scir(0.5)
    >>> draws = tallmc.sample(posterior, method, chains=2, n_draws=100, burn_in=100)
    >>> 1 < link_perplexity(draws, [[3, 4], [0, 4]], [1, 0]) < 6
    True
    """
    predictive = getattr(draws, "predictive", None)
    if not isinstance(predictive, LinkPredictive):
        cure = "Stored draws need their posterior: draws.with_posterior(posterior)."
        rule = "be draws of tallmc.contrib.networks.mixed_membership"
        raise InvalidInput("draws", rule, type(draws).__name__, cure)
    rows = ResidentRows(predictive.encode((pairs, links), response=True))
    return math.exp(-DrawnLaw(predictive, used_draws(draws), rows).log_densities().mean())


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

    def init(self, new: NewChain, rows: AbstractRows) -> ChainState:
        position = new.position
        if self.starts_at_counts:
            at = self._communities(position)
            n, k = at.nodes.shape
            of_node = self.prior.concentration * k + n - 1
            of_community = jnp.sum(self.prior.strength) + n * (n - 1) / 2 / k**2
            strengths = normalised(at.strengths) * of_community
            position = self._flat(Communities(normalised(at.nodes) * of_node, strengths))
        return ChainState(PositionState(position), None)

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
        return KernelStep(new, {}, outcome_of(position))

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
    nodes and all strengths by a transition of gamma variables (`contrib/simplex.py`):

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
        dynamics, subsample = _TRANSITIONS[self.process].__name__, f"nodes and pairs, {self.scheme}"
        return labels(dynamics, "expected counts", subsample, "per node")

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
