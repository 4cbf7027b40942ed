"""The rows of a network: one row per node, with its links.

A pair of nodes {a, b} is linked, not linked, or held out. Only links and held-out pairs are stored.
Row a lists the nodes e₀ < e₁ < … that are no observed non-links of a: its links, its held-out
partners and a itself. The r-th observed non-link of a is then found by a search in a sorted list,

    b = r + #{j : e_j − j ≤ r},   r = 0, …, n_nodes − 1 − #{e_j}

Lists are padded to the longest, so memory is n_nodes times the largest number of links.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput, check_int, check_number

_MOST_NODES = 2**30


class NodeRows(NamedTuple):
    """Nodes with their links."""

    number: Int[Array, "*n"]
    """The node."""
    links: Int[Array, "*n L"]
    """Its links, padded with n_nodes."""
    n_links: Int[Array, "*n"]
    excluded: Int[Array, "*n E"]
    """e_j in increasing order, padded with n_nodes + j."""
    n_non_links: Int[Array, "*n"]
    """How many other nodes are observed not to be linked."""

    def partners(self, ranks: Int[Array, "n c"]) -> tuple[Int[Array, "n c"], Bool[Array, "n c"]]:
        """The observed partners with these numbers, links first, and whether they are links.

        Numbers out of range give any node.
        """
        is_link = ranks < self.n_links[:, None]
        link = jnp.take_along_axis(
            self.links, jnp.minimum(ranks, self.links.shape[1] - 1), axis=1, mode="clip"
        )
        shifted = self.excluded - jnp.arange(self.excluded.shape[1])
        among_non_links = ranks - self.n_links[:, None]
        before = jax.vmap(lambda sorted_, r: jnp.searchsorted(sorted_, r, side="right"))(
            shifted, among_non_links
        )
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
    """The rows of a network, and its number of nodes.

    **Arguments:**

    - `edges`: the links, (n, 2) numbers of nodes. A link may be listed in both directions.
    - `n_nodes`: the number of nodes; by default one more than the largest number in `edges`.
    - `held_out`: pairs of nodes whose links are treated as unknown.

    **Raises:** `InvalidInput` for links of a node with itself, for links that are listed twice in
    one direction, and for numbers out of range.
    """
    links, count = undirected(edges, n_nodes)
    hidden = np.zeros((0, 2), np.int64) if held_out is None else _pairs("held_out", held_out, count)
    codes = _codes(hidden, count)
    if np.unique(codes).size < codes.size:
        raise InvalidInput("held_out", "list every pair once", _repeated(hidden, codes))
    seen = links[~np.isin(_codes(links, count), codes)]
    if not seen.size:
        raise InvalidInput("edges", "have a link that is not held out", "none")
    nodes = np.arange(count)
    own = np.stack([nodes, nodes], axis=1)
    of_links, n_links = _lists(_both_ways(seen), count)
    excluded, n_excluded = _lists(
        np.concatenate([_both_ways(seen), _both_ways(hidden), own]), count
    )
    padding = np.arange(excluded.shape[1]) >= n_excluded[:, None]
    excluded = np.where(padding, count + np.arange(excluded.shape[1]), excluded)
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


def link_pairs(
    pairs: ArrayLike, links: ArrayLike | None, n_nodes: int, dtype: Any
) -> tuple[Int[Array, "n 2"], Float[Array, " n"]]:
    """Pairs of nodes and whether they are linked; NaN if `links` is None."""
    checked = jnp.asarray(_pairs("pairs", pairs, n_nodes), jnp.int32)
    if links is None:
        return checked, jnp.full(checked.shape[0], jnp.nan, dtype)
    values = np.asarray(check_numeric("links", links), float)
    if values.shape != checked.shape[:1] or not np.isin(values, (0, 1)).all():
        rule = f"be 0 or 1 for each of the {checked.shape[0]} pairs"
        raise InvalidInput("links", rule, f"shape {values.shape}")
    return checked, jnp.asarray(values, dtype)


class HeldOutPairs(NamedTuple):
    """Pairs of nodes to predict.

    >>> held_out_pairs([[0, 1], [1, 2], [2, 3]], fraction=0.3).links.tolist()
    [1, 0]
    """

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
    which `tallmc.diagnose.link_perplexity` takes.

    **Raises:** `InvalidInput` if the network has no links or too few pairs without a link.

    >>> held_out_pairs([[0, 1], [1, 2], [2, 3], [3, 4]], fraction=0.5).pairs.shape
    (4, 2)
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
    if (numbers != values).any():
        raise InvalidInput(
            parameter, "hold whole numbers of nodes", float(values[numbers != values][0])
        )
    most = _MOST_NODES if n_nodes is None else check_int("n_nodes", n_nodes, 2, _MOST_NODES)
    bad = (numbers < 0) | (numbers >= most)
    if bad.any():
        rule = "number the nodes from 0" + (
            "" if n_nodes is None else f" to n_nodes − 1 = {most - 1}"
        )
        raise InvalidInput(parameter, rule, int(numbers[bad][0]))
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
