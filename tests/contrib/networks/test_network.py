"""Communities in networks: counts, stationary law, recovery of memberships, perplexity."""

import itertools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from block_models import exact_summaries, matched, simulated, summaries

import tallmc
from tallmc.contrib.networks import BlockPrior, CommunitySampler, PairWords

EDGES = np.array([[0, 1], [0, 2], [1, 2], [2, 3], [3, 4], [3, 5]])
N_NODES, K, DELTA = 6, 3, 0.07
TINY = np.array([[0, 1], [0, 2], [1, 2], [2, 3]])
TINY_SETTING = {"alpha": 0.8, "eta": (2.0, 1.5), "background": 0.15}


def adjacency(edges, n_nodes):
    y = np.zeros((n_nodes, n_nodes), int)
    y[edges[:, 0], edges[:, 1]] = y[edges[:, 1], edges[:, 0]] = 1
    return y


def bound_kernel(**options):
    posterior = tallmc.contrib.networks.mixed_membership(EDGES, n_communities=K, background=DELTA)
    bound = CommunitySampler(step_size=0.1, **options).prepare(posterior).kernel
    return bound.kernel, posterior


def exact_counts(memberships, strengths):
    """Expected counts of all z given y, from all pairs of communities of all pairs of nodes."""
    y, of_nodes, of_strengths = adjacency(EDGES, N_NODES), np.zeros((N_NODES, K)), np.zeros((K, 2))
    for a, b in itertools.combinations(range(N_NODES), 2):
        chance = np.full((K, K), DELTA)
        np.fill_diagonal(chance, strengths)
        joint = np.outer(memberships[a], memberships[b]) * (chance if y[a, b] else 1 - chance)
        joint /= joint.sum()
        of_nodes[a] += joint.sum(axis=1)
        of_nodes[b] += joint.sum(axis=0)
        of_strengths[:, y[a, b]] += np.diag(joint)
    return of_nodes, of_strengths


def check_mean_counts(kernel, posterior):
    """The counts of all mini-batches with complete partners average to the exact counts."""
    position = jnp.asarray(np.random.default_rng(1).gamma(1.0, size=posterior.dim))
    shown = posterior.quantities.of(np.asarray(position)[None, None])
    of_nodes, of_strengths = exact_counts(shown["memberships"][0, 0], shown["strengths"][0, 0])
    words = jax.jit(kernel.selection.draw)(jax.random.key(0, impl="threefry2x32"))
    found, totals = np.zeros((N_NODES, K)), np.zeros((K, 2))

    @jax.jit
    def estimate(start):
        drawn = PairWords(start, words.coins, words.partners)
        batch = kernel.selection.select(drawn, posterior.rows, jnp.float64)
        return batch.nodes, kernel.counts(kernel._communities(position), batch)

    for first in range(N_NODES):
        start = jnp.asarray([int((first + 0.5) / N_NODES * 2**32), 0], jnp.uint32)
        nodes, counts = estimate(start)
        found[np.asarray(nodes)] += np.asarray(counts.nodes)
        totals += np.asarray(counts.strengths) / N_NODES
    np.testing.assert_allclose(totals, of_strengths, rtol=1e-10)
    np.testing.assert_allclose(found / kernel.selection.touched, of_nodes, rtol=1e-10)


@pytest.mark.parametrize("nodes", [1, 2, 6])
def test_counts_are_the_expected_counts_of_all_communities(nodes):
    check_mean_counts(*bound_kernel(nodes=nodes))


@pytest.mark.smoke
def test_counts_with_a_wrong_background_are_caught():
    kernel, posterior = bound_kernel(nodes=2)
    wrong = eqx.tree_at(lambda k: k.likelihood.background, kernel, jnp.asarray(2 * DELTA))
    with pytest.raises(AssertionError):
        check_mean_counts(wrong, posterior)


@pytest.mark.smoke
def test_forgotten_weights_of_non_links_are_caught():
    """With one non-link per node, those that were not read must count through its weight."""
    selected = CommunitySampler(step_size=0.1, nodes=2, non_links=1)
    posterior = tallmc.contrib.networks.mixed_membership(EDGES, n_communities=K, background=DELTA)
    kernel = selected.prepare(posterior).kernel.kernel

    @jax.jit
    def counts_and_fewer(key):
        batch = kernel.selection.select(kernel.selection.draw(key), posterior.rows, jnp.float64)
        forgotten = eqx.tree_at(lambda b: b.weights, batch, jnp.minimum(batch.weights, 1))
        at = kernel._communities(posterior.init)
        return kernel.counts(at, batch).nodes, kernel.counts(at, forgotten).nodes

    counts, fewer = counts_and_fewer(jax.random.key(0, impl="threefry2x32"))
    np.testing.assert_allclose(np.sum(counts, axis=1), N_NODES - 1, rtol=1e-12)
    assert np.all(np.sum(fewer, axis=1) < N_NODES - 1.5)


@pytest.mark.parametrize("process", ["scir", "sgrld"])
def test_nodes_that_are_not_touched_do_not_move(process):
    kernel, posterior = bound_kernel(nodes=2, process=process)
    key, at = jax.random.key(0, impl="threefry2x32"), kernel._communities(posterior.init)
    moved = kernel.moved(at, key, jnp.asarray(0.1), posterior.rows)
    changed = np.any(np.asarray(moved.nodes) != np.asarray(at.nodes), axis=1)
    assert changed.sum() == 2 and np.all(np.asarray(moved.strengths) != np.asarray(at.strengths))


def errors_in_sds(process, step_size, concentration, chains=64, draws=600):
    """The errors of posterior means in posterior sds, with their standard errors."""
    setting = TINY_SETTING
    exact = exact_summaries(adjacency(TINY, 4), setting["background"], setting["alpha"], (2.0, 1.5))
    posterior = tallmc.contrib.networks.mixed_membership(
        TINY,
        n_communities=2,
        concentration=concentration,
        strength_prior=setting["eta"],
        background=setting["background"],
    )
    method = CommunitySampler(
        step_size=step_size, process=process, nodes=2, non_links=3, batches=10
    )
    found = tallmc.sample(
        posterior, method, chains=chains, n_draws=draws, burn_in=150, seed=1, progress=False
    )
    values = summaries(**posterior.quantities.of(found.positions))
    of_chains, sd = values.mean(axis=1), values.std(axis=(0, 1))
    error = of_chains.std(axis=0, ddof=1) / np.sqrt(chains)
    return (of_chains.mean(axis=0) - exact) / sd, error / sd


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "step_size", "bias"), [("scir", 0.1, 0.03), ("sgrld", 0.02, 0.07)]
)
def test_stationary_law_is_the_posterior_by_enumeration(process, step_size, bias):
    """Two of four nodes per mini-batch. `bias` is that of the step size and of SCIR's tilt.

    Measured with 200 chains of 1,500 draws: SCIR 0.020 sds in strengths and at most 0.019 in
    memberships, SGRLD at most 0.053.
    """
    found, error = errors_in_sds(process, step_size, TINY_SETTING["alpha"])
    assert np.all(np.abs(found) <= bias + 4.6 * error)


@pytest.mark.slow
def test_a_prior_scaled_with_the_mini_batch_is_caught():
    found, error = errors_in_sds("scir", 0.1, 2 * TINY_SETTING["alpha"], draws=300)
    assert np.any(np.abs(found) > 0.1 + 4.6 * error)


def recovery(n_nodes, n_communities, method, *, draws, burn_in):
    """The mean error of recovered memberships, and the perplexity of held-out pairs."""
    edges, truth = simulated(
        n_nodes, n_communities, concentration=0.05, strength=0.6, background=0.01, seed=0
    )
    held_out = tallmc.contrib.networks.held_out_pairs(edges, n_nodes)
    posterior = tallmc.contrib.networks.mixed_membership(
        edges, n_nodes, n_communities, held_out=held_out.pairs, background=0.01
    )
    found = tallmc.sample(
        posterior, method, chains=2, n_draws=draws, burn_in=burn_in, progress=False
    )
    means = posterior.quantities.of(found.positions)["memberships"].mean(axis=1)
    errors = [np.abs(matched(mean, truth) - truth).sum(axis=1).mean() / 2 for mean in means]
    return max(errors), tallmc.contrib.networks.link_perplexity(
        found, held_out.pairs, held_out.links
    )


@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
@pytest.mark.parametrize(
    "method", [tallmc.contrib.networks.mmsb_sgrld(0.01), tallmc.contrib.networks.mmsb_scir(0.5)]
)
def test_memberships_of_a_simulated_network_are_recovered(method):
    """Memberships drawn at random from their law are wrong by 0.6 of a node on average."""
    error, perplexity = recovery(60, 2, method, draws=100, burn_in=300)
    assert error < 0.1
    assert perplexity < 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
@pytest.mark.parametrize(
    "method", [tallmc.contrib.networks.mmsb_sgrld(0.01), tallmc.contrib.networks.mmsb_scir(0.2)]
)
def test_four_communities_of_200_nodes_are_recovered(method):
    error, perplexity = recovery(200, 4, method, draws=300, burn_in=600)
    assert error < 0.2
    assert perplexity < 1.95


@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
def test_perplexity_averages_probabilities_over_draws():
    posterior = tallmc.contrib.networks.mixed_membership(TINY, n_communities=2, background=0.1)
    found = tallmc.sample(
        posterior,
        tallmc.contrib.networks.mmsb_scir(0.5),
        chains=2,
        n_draws=5,
        burn_in=0,
        progress=False,
    )
    shown = posterior.quantities.of(found.positions)
    pairs, links = np.array([[0, 3], [1, 2], [3, 1]]), np.array([0, 1, 0])
    of_pairs = []
    for (a, b), y in zip(pairs, links, strict=True):
        together = shown["memberships"][:, :, a] * shown["memberships"][:, :, b]
        chance = (together * shown["strengths"]).sum(-1) + 0.1 * (1 - together.sum(-1))
        of_pairs.append(np.log(np.mean(chance if y else 1 - chance)))
    expected = np.exp(-np.mean(of_pairs))
    perplexity = tallmc.contrib.networks.link_perplexity(found, pairs, links)
    np.testing.assert_allclose(perplexity, expected, rtol=1e-10)
    predicted = found.predict(pairs).mean
    np.testing.assert_allclose(-np.log(predicted[1]), -of_pairs[1], rtol=1e-10)


@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
def test_a_stored_run_continues_bit_for_bit(tmp_path):
    posterior = tallmc.contrib.networks.mixed_membership(EDGES, n_communities=2)
    options = {"chains": 2, "burn_in": 3, "seed": 4, "progress": False}
    whole = tallmc.sample(posterior, tallmc.contrib.networks.mmsb_scir(0.5), n_draws=8, **options)
    tallmc.sample(
        posterior,
        tallmc.contrib.networks.mmsb_scir(0.5),
        n_draws=5,
        store=tmp_path / "run",
        **options,
    )
    resumed = tallmc.resume(tmp_path / "run", posterior, n_draws=8, progress=False)
    np.testing.assert_array_equal(resumed.positions, whole.positions)


KARATE = """
0: 1 2 3 4 5 6 7 8 10 11 12 13 17 19 21 31; 1: 2 3 7 13 17 19 21 30; 2: 3 7 8 9 13 27 28 32
3: 7 12 13; 4: 6 10; 5: 6 10 16; 6: 16; 8: 30 32 33; 9: 33; 13: 33; 14: 32 33; 15: 32 33
18: 32 33; 19: 33; 20: 32 33; 22: 32 33; 23: 25 27 29 32 33; 24: 25 27 31; 25: 31; 26: 29 33
27: 33; 28: 31 33; 29: 32 33; 30: 32 33; 31: 32 33; 32: 33
"""
"""The links of Zachary's karate club (1977), by the smaller number of a pair."""
OF_MR_HI = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21]


def shares_in_their_faction(method, burn_in, n_draws=100):
    """Of the 34 members, by chain; all chains start at the two factions."""
    lists = [entry.split(":") for entry in re.split("[;\\n]", KARATE) if entry]
    edges = [(int(node), int(other)) for node, others in lists for other in others.split()]
    assert len(edges) == 78
    posterior = tallmc.contrib.networks.mixed_membership(edges, 34, 2)
    of_hi = np.isin(np.arange(34), OF_MR_HI)
    start = posterior.layout.ravel(
        {
            "membership_weights": np.where(of_hi[:, None] == [True, False], 0.95, 0.05),
            "strength_weights": np.tile([0.75, 0.25], (2, 1)),
        }
    )
    found = tallmc.sample(
        posterior, method, chains=8, n_draws=n_draws, burn_in=burn_in, start=start, progress=False
    )
    means = posterior.quantities.of(found.positions)["memberships"].mean(axis=1)
    agree = np.mean((means[:, :, 0] > 0.5) == of_hi, axis=1)
    return np.maximum(agree, 1 - agree)


@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
def test_the_suggested_step_stays_in_the_factions_of_the_karate_club():
    """Exact Gibbs sampling has 0.95 of the members in their faction."""
    method = tallmc.contrib.networks.mmsb_sgrld()
    assert method.step_size_for(BlockPrior(jnp.asarray(0.5), jnp.ones(2)), 34, 2) == 0.03 / 33
    assert shares_in_their_faction(method, 1000).mean() > 0.8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
def test_steps_far_above_the_weights_leave_the_factions():
    assert shares_in_their_faction(tallmc.contrib.networks.mmsb_sgrld(), 3000, 400).mean() > 0.8
    assert shares_in_their_faction(tallmc.contrib.networks.mmsb_sgrld(0.01), 3000, 400).mean() < 0.7


def test_other_posteriors_and_bad_settings_are_answered():
    regression = tallmc.models.linear_regression(
        [[1.0], [2.0]], [1.0, 2.0], prior_variance=1.0, noise_variance=1.0
    )
    with pytest.raises(tallmc.InvalidInput, match=r"network of tallmc\.contrib"):
        tallmc.sample(regression, tallmc.contrib.networks.mmsb_scir(0.1))
    for options, message in (
        ({"process": "sgld"}, "process must be one of 'sgrld', 'scir'"),
        ({"scheme": "all"}, "scheme must be one of 'stratified'"),
        ({"nodes": 0}, "nodes must be an int of at least 1"),
        ({"batches": 0}, "batches must be an int of at least 1"),
    ):
        with pytest.raises(tallmc.InvalidInput, match=message):
            CommunitySampler(step_size=0.1, **options)


def test_defaults_keep_fewer_draws_of_large_networks():
    method = tallmc.contrib.networks.mmsb_scir(0.1)
    assert method.defaults(100).draws == 1000
    assert method.defaults(10**6).draws == 25
