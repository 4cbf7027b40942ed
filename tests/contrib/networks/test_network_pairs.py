"""Pairs of nodes of a network: latent communities, rows and weights, all by enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from tallmc.contrib.networks import (
    SCHEMES,
    BlockLikelihood,
    BlockParameters,
    PairSelection,
    PairWords,
    held_out_pairs,
)

EDGES = np.array([[0, 1], [0, 2], [1, 2], [2, 3], [3, 4], [3, 5]])
HELD_OUT = np.array([[3, 4], [0, 5]])
N_NODES, DELTA = 6, 0.07
RNG = np.random.default_rng(3)


def adjacency(edges=EDGES, n_nodes=N_NODES):
    y = np.zeros((n_nodes, n_nodes), int)
    y[edges[:, 0], edges[:, 1]] = y[edges[:, 1], edges[:, 0]] = 1
    return y


def observed_pairs(held_out=HELD_OUT):
    hidden = {frozenset(pair) for pair in held_out.tolist()}
    return [
        (a, b)
        for a, b in itertools.combinations(range(N_NODES), 2)
        if frozenset((a, b)) not in hidden
    ]


def enumerated(pi_a, pi_b, beta, y):
    """P(z_ab = j, z_ba = k, y) for all j, k, from the definition of the model."""
    joint = np.empty((len(beta), len(beta)))
    for j, k in itertools.product(range(len(beta)), repeat=2):
        chance = beta[j] if j == k else DELTA
        joint[j, k] = pi_a[j] * pi_b[k] * (chance if y else 1 - chance)
    return joint


@pytest.mark.parametrize("y", [0, 1])
def test_expectations_are_those_of_all_pairs_of_communities(y):
    pi_a, pi_b = RNG.dirichlet(np.ones(3), 2)
    beta = RNG.uniform(size=3)
    joint = enumerated(pi_a, pi_b, beta, y)
    likelihood = BlockLikelihood(jnp.asarray(DELTA))
    at = map(jnp.asarray, (pi_a, pi_b, beta))
    of_node, of_both = likelihood.expectations(*at, jnp.asarray(y == 1))
    np.testing.assert_allclose(of_node, joint.sum(axis=1) / joint.sum(), rtol=1e-12)
    np.testing.assert_allclose(of_both, np.diag(joint) / joint.sum(), rtol=1e-12)
    chance = float(likelihood.chance(*map(jnp.asarray, (pi_a, pi_b, beta))))
    np.testing.assert_allclose(chance if y else 1 - chance, joint.sum(), rtol=1e-12)


def posterior_of(held_out=HELD_OUT, **options):
    return tallmc.contrib.networks.mixed_membership(
        EDGES, n_communities=3, held_out=held_out, background=DELTA, **options
    )


def test_likelihood_of_all_rows_counts_every_observed_pair_once():
    posterior = posterior_of(concentration=1.0)  # Gamma(1, 1) priors: f₀ is the sum of the weights
    position = jnp.asarray(RNG.gamma(2.0, size=posterior.dim))
    at = BlockParameters.of(posterior.layout.unravel(position))
    pi, beta, y = np.asarray(at.memberships), np.asarray(at.strengths), adjacency()
    expected = sum(
        np.log(enumerated(pi[a], pi[b], beta, y[a, b]).sum()) for a, b in observed_pairs()
    )
    np.testing.assert_allclose(
        float(posterior.potential(position)), float(position.sum()) - expected, rtol=1e-12
    )


def words_for(rank, count):
    """Random words whose number below `count` is `rank`."""
    return [int((rank + 0.5) / max(count, 1) * 2**32), 0]


def all_batches(selection, source):
    """Every mini-batch of one node, with its probability."""
    n_draws = selection.links + selection.non_links
    rows = jax.tree.map(np.asarray, source.columns)
    select = jax.jit(lambda words: selection.select(words, source, jnp.float64))
    for node in range(N_NODES):
        strata = [int(rows.n_links[node])] * selection.links
        strata += [int(rows.n_non_links[node])] * selection.non_links
        if selection.scheme == "uniform":
            strata = [int(rows.n_links[node] + rows.n_non_links[node])] * n_draws
        numbers = [range(max(count, 1)) for count in strata]
        for coin, ranks in itertools.product((0, 2**32 - 1), itertools.product(*numbers)):
            words = PairWords(
                jnp.asarray(words_for(node, N_NODES), jnp.uint32),
                jnp.asarray([coin], jnp.uint32),
                jnp.asarray(
                    [[words_for(*pair) for pair in zip(ranks, strata, strict=True)]], jnp.uint32
                ),
            )
            chance = 1 / N_NODES / 2 / np.prod([len(each) for each in numbers])
            yield chance, select(words)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1)])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_are_unbiased_by_enumeration(scheme, sizes):
    """For each node given that it is touched, and for all pairs together."""
    value, y = RNG.normal(size=(2, N_NODES, N_NODES)), adjacency()
    value += value.transpose(0, 2, 1)  # a different value of each pair for links and non-links
    selection = PairSelection(N_NODES, 1, *sizes, scheme)
    of_node, of_all, chance_of_node = np.zeros(N_NODES), 0.0, np.zeros(N_NODES)
    for chance, batch in all_batches(selection, posterior_of().rows):
        node, weights = int(batch.nodes[0]), np.asarray(batch.weights[0])
        partners, is_link = np.asarray(batch.partners[0]), np.asarray(batch.is_link[0])
        used = weights > 0
        np.testing.assert_array_equal(is_link[used], y[node, partners[used]])
        total = (weights * value[is_link.astype(int), node, partners])[used].sum()
        of_node[node] += chance * total
        of_all += chance * selection.scale * total
        chance_of_node[node] += chance
    expected, expected_of_all = np.zeros(N_NODES), 0.0
    for a, b in observed_pairs():
        expected[[a, b]] += value[y[a, b], a, b]
        expected_of_all += value[y[a, b], a, b]
    np.testing.assert_allclose(chance_of_node, 1 / N_NODES, rtol=1e-12)
    np.testing.assert_allclose(of_node / chance_of_node, expected, rtol=1e-10)
    np.testing.assert_allclose(of_all, expected_of_all, rtol=1e-10)


@pytest.mark.parametrize("scheme", ["stratified", "uniform"])
def test_strata_that_are_small_are_read_completely(scheme):
    """With room for all partners, one mini-batch of all nodes has every pair twice."""
    selection = PairSelection(N_NODES, N_NODES, 4, 5, scheme)
    batch = selection.select(
        selection.draw(jax.random.key(0, impl="threefry2x32")), posterior_of().rows, jnp.float64
    )
    used = np.asarray(batch.weights) > 0
    np.testing.assert_array_equal(np.asarray(batch.weights)[used], 1)
    nodes = np.broadcast_to(np.asarray(batch.nodes)[:, None], used.shape)
    pairs = zip(nodes[used].tolist(), np.asarray(batch.partners)[used].tolist(), strict=True)
    both_ways = [pair for a, b in observed_pairs() for pair in ((a, b), (b, a))]
    assert sorted(pairs) == sorted(both_ways)
    assert selection.scale == 0.5


@pytest.mark.parametrize("touched", [1, 2, 4, 5, 6])
def test_nodes_of_a_mini_batch_differ_and_are_uniform(touched):
    selection = PairSelection(N_NODES, touched, 1, 1, "stratified")
    key, rows = jax.random.key(0, impl="threefry2x32"), posterior_of().rows
    counts = np.zeros(N_NODES)
    for first in range(N_NODES):
        words = selection.draw(key)
        start = jnp.asarray(words_for(first, N_NODES), jnp.uint32)
        words = PairWords(start, words.coins, words.partners)
        nodes = np.asarray(selection.select(words, rows, jnp.float64).nodes)
        assert np.unique(nodes).size == touched
        counts[nodes] += 1
    np.testing.assert_array_equal(counts, touched)


def test_held_out_pairs_are_half_links_and_left_out():
    found = held_out_pairs(EDGES, fraction=0.4, seed=1)
    y = adjacency()
    np.testing.assert_array_equal(found.links, y[found.pairs[:, 0], found.pairs[:, 1]])
    assert found.links.tolist() == [1, 1, 0, 0]
    assert len({frozenset(pair) for pair in found.pairs.tolist()}) == 4
    rows = jax.tree.map(np.asarray, posterior_of(found.pairs).rows.columns)
    hidden_links = np.bincount(found.pairs[found.links == 1].ravel(), minlength=N_NODES)
    np.testing.assert_array_equal(rows.n_links, y.sum(axis=1) - hidden_links)
    hidden = np.bincount(found.pairs.ravel(), minlength=N_NODES)
    np.testing.assert_array_equal(rows.n_links + rows.n_non_links, N_NODES - 1 - hidden)


def test_links_may_be_listed_in_both_directions():
    both = np.concatenate([EDGES, EDGES[:, ::-1]])
    once, twice = (tallmc.contrib.networks.mixed_membership(edges).data for edges in (EDGES, both))
    jax.tree.map(np.testing.assert_array_equal, once, twice)


@pytest.mark.parametrize(
    ("edges", "options", "message"),
    [
        ([[0, 1], [2, 2]], {}, r"edges must be pairs of different nodes; got \(2, 2\)"),
        ([[0, 1], [0, 1]], {}, r"list every link once.*got the pair \(0, 1\) twice. Remove"),
        ([[0, 1], [1, 5]], {"n_nodes": 4}, r"number the nodes from 0 to n_nodes − 1 = 3; got 5"),
        ([[0, -1]], {}, "number the nodes from 0; got -1"),
        ([[0, 1.5]], {}, "hold whole numbers of nodes; got 1.5"),
        ([0, 1, 2], {}, r"\(n, 2\) array; got shape \(3,\)"),
        ([[0, 1], [1, 2]], {"n_communities": 1}, "n_communities must be an int of at least 2"),
        ([[0, 1], [1, 2]], {"background": 1.0}, "background must be a finite number"),
        ([[0, 1], [1, 2]], {"concentration": 0.0}, "concentration must be a finite number"),
        ([[0, 1], [1, 2]], {"strength_prior": 1.0}, "strength_prior must be two numbers"),
        ([[0, 1], [1, 2]], {"held_out": [[0, 1], [1, 0]]}, "held_out must list every pair once"),
        ([[0, 1]], {"held_out": [[0, 1]]}, "edges must have a link that is not held out"),
    ],
)
def test_bad_networks_are_answered(edges, options, message):
    with pytest.raises(tallmc.InvalidInput, match=message):
        tallmc.contrib.networks.mixed_membership(edges, **options)


def test_a_fraction_that_leaves_too_few_non_links_is_answered():
    with pytest.raises(tallmc.InvalidInput, match="fraction must leave twice as many pairs"):
        held_out_pairs([[0, 1], [1, 2], [0, 2]], fraction=0.5)
