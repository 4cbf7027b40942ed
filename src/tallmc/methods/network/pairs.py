"""Which pairs of nodes a mini-batch reads, and their weights.

A mini-batch *touches* M of the N nodes, a uniformly among them. Partners b of a touched node a are
drawn from its n_a observed partners, of which d_a are links. Weights w_ab are unbiased given that a
is touched, for any function g of a pair,

    E[Σ_b w_ab g_ab | a touched] = Σ_b g_ab            (b over all observed partners of a)

Every pair {a, b} is reached from a and from b, and a node is touched with probability M/N. With the
scale N/(2M), sums over all pairs are therefore unbiased as well:

    E[(N/2M) Σ_a touched Σ_b w_ab g_ab] = Σ_{a<b} g_ab

Ways to draw partners, from m links and n non-links per node at most:

    stratified     m of the links, w = d_a/m, and n of the non-links, w = (n_a − d_a)/n
    one stratum    a coin decides between the two, and w doubles: Li, Ahn and Welling (2016)
    uniform        m + n of all partners, w = n_a/(m + n)

If a stratum has no more partners than may be drawn, it is read completely, with w = 1. Otherwise
partners are drawn independently. With links and non-links in strata, Σ_b w_ab = n_a is constant.
Links are rare and tell more than non-links, so stratified weights have the smallest variance. The
authors divide the non-links of a node into sets and read one whole set. Their weight of a link, N,
and of a non-link, N times the number of sets, are N/2 · w_ab here for M = 1.

The nodes of a mini-batch are a random node and those at distances N/M, 2N/M, … from it: they are
different, at a cost that does not grow with N.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from ...core.random import derived_keys, random_words
from ...models.network import NodeRows
from ...rows.base import AbstractRows
from ...rows.bits import uniform_index

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
    weights: Float[Array, "M c"]
    """w_ab; zero for entries that are not used."""


class PairSelection(eqx.Module):
    """Draws mini-batches of pairs."""

    n_nodes: int = eqx.field(static=True)
    """N."""
    touched: int = eqx.field(static=True)
    """M."""
    links: int = eqx.field(static=True)
    """The most links per node."""
    non_links: int = eqx.field(static=True)
    """The most non-links per node."""
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

    def select(self, words: PairWords, source: AbstractRows, dtype: Any) -> PairBatch:
        """The pairs that these random words choose."""
        first = uniform_index(words.start, jnp.uint32(self.n_nodes))
        stride = self.n_nodes // self.touched
        nodes = (first + stride * jnp.arange(self.touched, dtype=jnp.int32)) % self.n_nodes
        rows: NodeRows = source.take(nodes)
        if self.scheme == "uniform":
            ranks, weights = _drawn(words.partners, rows.n_links + rows.n_non_links, dtype)
        else:
            of_links, link_weights = _drawn(words.partners[:, : self.links], rows.n_links, dtype)
            others, weights = _drawn(words.partners[:, self.links :], rows.n_non_links, dtype)
            if self.scheme == "one stratum":
                reads_links = (words.coins < jnp.uint32(2**31))[:, None]
                link_weights = jnp.where(reads_links, 2 * link_weights, 0)
                weights = jnp.where(reads_links, 0, 2 * weights)
            ranks = jnp.concatenate([of_links, rows.n_links[:, None] + others], axis=1)
            weights = jnp.concatenate([link_weights, weights], axis=1)
        partners, is_link = rows.partners(ranks)
        return PairBatch(nodes, jnp.where(weights > 0, partners, 0), is_link, weights)


def _drawn(
    words: UInt32[Array, "M c 2"], count: Int[Array, " M"], dtype: Any
) -> tuple[Int[Array, "M c"], Float[Array, "M c"]]:
    """c numbers below `count` per node, or all if there are at most c, and their weights."""
    size = words.shape[1]
    every = jnp.arange(size, dtype=jnp.int32)[None]
    count = count[:, None]
    is_complete = count <= size
    drawn = uniform_index(words, count.astype(jnp.uint32))
    ranks = jnp.where(is_complete, every, drawn)
    weights = jnp.where(is_complete, every < count, count.astype(dtype) / max(size, 1))
    return ranks, weights.astype(dtype)
