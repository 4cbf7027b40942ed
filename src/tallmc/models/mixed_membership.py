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

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray, PyTree

from ..core.errors import InvalidInput, check_int, check_number
from ..core.layout import layout_of
from ..core.quantities import ComputedQuantities
from ..rows.resident import resident
from .densities import Batched, DensityModel
from .network import NodeRows, link_pairs, node_rows
from .posterior import ModelPosterior
from .predictive import AbstractPredictive

_BACKGROUND_SHARE = 0.1


class BlockParameters(NamedTuple):
    """What the positions of the model mean."""

    memberships: Float[Array, "N K"]
    """π."""
    strengths: Float[Array, " K"]
    """β."""

    @classmethod
    def of(cls, params: PyTree) -> BlockParameters:
        """Normalise the weights φ and θ."""
        weights, pairs = params["membership_weights"], params["strength_weights"]
        return cls(normalised(weights), normalised(pairs)[..., 1])


class PairExpectations(NamedTuple):
    """Laws of the latent communities of pairs of nodes, given their links."""

    of_node: Float[Array, "*n K"]
    """P(z_ab = k | y_ab) of the first node a."""
    of_both: Float[Array, "*n K"]
    """P(z_ab = z_ba = k | y_ab)."""


class BlockLikelihood(eqx.Module):
    """p(y_ab | π, β)."""

    background: Float[Array, ""]
    """δ."""

    def expectations(
        self,
        node: Float[Array, "*n K"],
        partner: Float[Array, "*n K"],
        strengths: Float[Array, " K"],
        is_link: Bool[Array, "*n"],
    ) -> PairExpectations:
        """The laws of z given y, for pairs with memberships π_a (`node`) and π_b (`partner`)."""
        y = is_link[..., None]
        same = jnp.where(y, strengths, 1 - strengths)
        different = jnp.where(y, self.background, 1 - self.background)
        of_both = node * partner * same
        of_node = of_both + node * (1 - partner) * different
        total = jnp.sum(of_node, axis=-1, keepdims=True)
        return PairExpectations(of_node / total, of_both / total)

    def chance(
        self,
        node: Float[Array, "*n K"],
        partner: Float[Array, "*n K"],
        strengths: Float[Array, " K"],
    ) -> Float[Array, "*n"]:
        """P(y_ab = 1 | π, β)."""
        together = node * partner
        return self.background * (1 - jnp.sum(together, axis=-1)) + together @ strengths

    def __call__(self, params: PyTree, rows: NodeRows) -> Float[Array, " n"]:
        """The log-likelihood of the pairs of each node with nodes of larger numbers."""
        at = BlockParameters.of(params)
        n_nodes = at.memberships.shape[0]
        own = at.memberships[rows.number]
        chance = self.background + (own * (at.strengths - self.background)) @ at.memberships.T
        is_link, is_observed = rows.observed(n_nodes)
        counted = is_observed & (jnp.arange(n_nodes) > rows.number[:, None])
        of_pairs = jnp.log(jnp.where(is_link, chance, 1 - chance))
        return jnp.sum(jnp.where(counted, of_pairs, 0), axis=1)


class BlockPrior(eqx.Module):
    """log p(φ, θ): independent gamma densities."""

    concentration: Float[Array, ""]
    """α."""
    strength: Float[Array, " 2"]
    """(η₀, η₁), of non-links and of links."""

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        return _log_gamma(params["membership_weights"], self.concentration) + _log_gamma(
            params["strength_weights"], self.strength
        )


class LinkRows(NamedTuple):
    """Pairs of nodes, and whether they are linked."""

    pairs: Int[Array, "n 2"]
    links: Float[Array, " n"]


class LinkPredictive(AbstractPredictive):
    """The law of the link of a pair of nodes."""

    model: DensityModel
    likelihood: BlockLikelihood

    @property
    def response_name(self) -> str:
        return "link"

    @property
    def classes(self) -> None:
        return None

    def encode(
        self,
        new_rows: Any,
        *,
        response: bool = False,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> LinkRows:
        if offset is not None or trials is not None:
            raise InvalidInput("offset and trials", "be left out: this model has none", "numbers")
        if isinstance(new_rows, LinkRows):
            return new_rows
        has_links = isinstance(new_rows, tuple) and len(new_rows) == 2
        if response and not has_links:
            raise InvalidInput("new rows", "be a tuple (pairs, links)", type(new_rows).__name__)
        pairs, links = new_rows if has_links else (new_rows, None)
        n_nodes = self.model.layout.shapes[0][0]
        return LinkRows(*link_pairs(pairs, links, n_nodes, self.model.dtype))

    def observed(self, rows: LinkRows) -> Float[Array, " n"]:
        return rows.links

    def mean(self, position: Float[Array, " d"], rows: LinkRows) -> Float[Array, " n"]:
        at = BlockParameters.of(self.model.layout.unravel(position))
        node, partner = (at.memberships[rows.pairs[:, side]] for side in (0, 1))
        return self.likelihood.chance(node, partner, at.strengths)

    def simulate(
        self, key: PRNGKeyArray, position: Float[Array, " d"], rows: LinkRows
    ) -> Float[Array, " n"]:
        chance = self.mean(position, rows)
        return jax.random.bernoulli(key, chance).astype(chance.dtype)

    def log_likelihood(self, position: Float[Array, " d"], rows: LinkRows) -> Float[Array, " n"]:
        chance = self.mean(position, rows)
        return jnp.log(jnp.where(rows.links == 1, chance, 1 - chance))


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

    Sample it with `tallmc.mmsb_scir` or `tallmc.mmsb_sgrld`, which move a few nodes per mini-batch.

    **Arguments:**

    - `edges`: the links, an (n, 2) array of numbers of nodes, from 0. The network is undirected; a
      link may be listed once, or in both directions.
    - `n_nodes`: the number of nodes; by default one more than the largest number in `edges`.
    - `n_communities`: K.
    - `held_out`: pairs of nodes, an (n, 2) array, that the likelihood leaves out, such as
      `tallmc.models.held_out_pairs(edges).pairs`.
    - `concentration`: α; by default 1/K.
    - `strength_prior`: (η₁, η₀) of the Beta prior of the strengths.
    - `background`: δ, the probability of a link between members of different communities. By
      default a tenth of the share of linked pairs.
    - `seed`: seed of the memberships at which chains start. With equal memberships in all
      communities, chains would start at a saddle point.

    **Returns:** a posterior with the quantities `memberships` (nodes × K) and `strengths` (K).
    `draws.predict(pairs)` gives probabilities of links.

    **Raises:** `InvalidInput` if `edges` has a link of a node with itself, a link twice in the same
    direction or a number out of range, or if another argument is out of its range.

    >>> posterior = mixed_membership([[0, 1], [1, 2], [2, 0], [2, 3]], n_communities=2)
    >>> posterior.n_rows, posterior.dim
    (4, 12)
    >>> posterior.quantities.shapes
    {'memberships': (4, 2), 'strengths': (2,)}
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
    start = _start(count, k, alpha, etas, check_int("seed", seed, 0))
    layout, init = layout_of(start)
    likelihood = BlockLikelihood(jnp.asarray(delta, init.dtype))
    model = DensityModel(
        log_likelihood=Batched(likelihood),
        log_prior=BlockPrior(
            jnp.asarray(alpha, init.dtype), jnp.asarray([etas[1], etas[0]], init.dtype)
        ),
        init=init,
        layout=layout,
    )

    def quantities(position: Float[Array, " d"]) -> dict[str, Array]:
        return BlockParameters.of(layout.unravel(position))._asdict()

    shown = ComputedQuantities(
        quantities,
        layout.dim,
        {"memberships": ("node", "community"), "strengths": ("community",)},
        {},
    )
    description = {
        "family": "mixed-membership stochastic block model",
        "communities": str(k),
        "background": f"{delta:.3g}",
    }
    return ModelPosterior(
        model, resident(rows), shown, LinkPredictive(model, likelihood), description
    )


def normalised(weights: Float[Array, "*n k"]) -> Float[Array, "*n k"]:
    """Weights divided by their sum over the last axis."""
    return weights / jnp.sum(weights, axis=-1, keepdims=True)


def _log_gamma(weights: Float[Array, "*n"], shape: Float[Array, ...]) -> Float[Array, ""]:
    return jnp.sum((shape - 1) * jnp.log(weights) - weights)


def _start(n_nodes: int, k: int, alpha: float, etas: list[float], seed: int) -> dict[str, Array]:
    """Memberships from a flat Dirichlet law, strengths at their prior mean."""
    rng = np.random.default_rng(seed)
    weights = k * alpha * rng.dirichlet(np.ones(k), n_nodes)
    strengths = np.tile([etas[1], etas[0]], (k, 1))
    return {
        "membership_weights": jnp.asarray(weights, float),
        "strength_weights": jnp.asarray(strengths, float),
    }
