"""Poisson-minibatch Gibbs: detailed balance by enumeration, and the law of its chains."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import poisson

import tallmc
from tallmc.contrib.poisson_gibbs import PoissonGibbs, potts_gibbs

A = np.array([[0.0, 0.9, 0.3, 0.0], [0.9, 0.0, 0.5, 0.7], [0.3, 0.5, 0.0, 0.2], [0.0, 0.7, 0.2, 0]])
D, EXPECTED, MOST = 3, 0.8, 14


def exact_law(interactions=A, n_states=D):
    states = np.array(list(itertools.product(range(n_states), repeat=len(interactions))))
    equal = states[:, :, None] == states[:, None]
    weights = np.exp(0.5 * (equal * interactions).sum(axis=(1, 2)))
    return states, weights / weights.sum()


def update_law(kernel, states, site: int, keeping) -> np.ndarray:
    """P(x_i → v) of one update: a sum over all numbers of kept neighbours, up to MOST of each.

    Thinned candidates are independent Poisson numbers per neighbour.
    """
    candidates = (1 + EXPECTED / float(kernel.largest)) * A[site]
    others = np.flatnonzero(A[site])
    rates = [candidates[j] * keeping(float(states[j] == states[site])) for j in others]
    total = np.zeros(D)
    for counts in itertools.product(range(MOST), repeat=len(others)):
        probability = np.prod([poisson.pmf(k, rate) for k, rate in zip(counts, rates, strict=True)])
        weights = np.zeros(D)
        np.add.at(weights, states[others], counts)
        weights = np.exp(np.log1p(float(kernel.largest) / EXPECTED) * weights)
        total += probability * weights / weights.sum()
    return total


def imbalance(keeping_of=lambda kernel: kernel.keeping) -> float:
    """The largest error of π(x) P(x → x') = π(x') P(x' → x), over some states and site 0."""
    kernel = PoissonGibbs.of(A, D, EXPECTED)
    states, law = exact_law()
    worst = 0.0
    for rest in [(0, 1, 2), (1, 1, 0), (2, 2, 2)]:
        group = [np.flatnonzero((states == (v, *rest)).all(axis=1))[0] for v in range(D)]
        moves = [update_law(kernel, states[k], 0, keeping_of(kernel)) for k in group]
        for v, w in itertools.combinations(range(D), 2):
            flow = law[group[v]] * moves[v][w] - law[group[w]] * moves[w][v]
            worst = max(worst, abs(flow) / law[group[v]])
    return worst


def test_updates_are_in_detailed_balance_by_enumeration():
    assert imbalance() < 1e-8


@pytest.mark.smoke
def test_detailed_balance_kills_counts_that_forget_the_factor():
    """Counts with the rate λA/L alone, and counts that are not thinned."""
    forgotten = lambda kernel: lambda equal: float(kernel.keeping(0.0))
    assert imbalance(forgotten) > 1e-3
    assert imbalance(lambda kernel: lambda equal: 1.0) > 1e-3


def test_candidates_are_drawn_in_proportion_and_votes_are_counted():
    kernel = PoissonGibbs.of(A, D, EXPECTED)
    uniforms = jnp.asarray((np.arange(kernel.most) + 0.5) / kernel.most)
    for site in range(4):
        found = kernel.candidates(jnp.int32(site), jnp.int32(kernel.most), uniforms)
        share = np.bincount(found, minlength=4) / kernel.most
        assert np.abs(share - A[site] / A[site].sum()).max() <= 1 / kernel.most
    few = kernel.candidates(jnp.int32(0), jnp.int32(3), uniforms)
    assert (np.asarray(few)[3:] == -1).all() and (np.asarray(few)[:3] >= 0).all()
    states, neighbours = jnp.array([0, 2, 2, 1]), jnp.array([1, 2, 3, 0])
    weights = kernel.log_weights(states, neighbours, jnp.array([True, True, True, False]))
    gain = np.log1p(float(kernel.largest) / EXPECTED)
    np.testing.assert_allclose(weights, [0, gain, 2 * gain], rtol=1e-6)


@pytest.mark.parametrize("expected", [0.5, 5.0])
def test_chains_have_the_law_of_the_model(expected):
    draws, read = potts_gibbs(A, 2, expected=expected, chains=256, n_draws=200, thin=4)
    states, law = exact_law(A, 2)
    for function in (
        lambda x: (x[..., 0] == x[..., 1]) + 0.0,
        lambda x: (x[..., 1] == x[..., 3]) + 0.0,
        lambda x: (x == x[..., :1]).all(axis=-1) + 0.0,
        lambda x: x[..., 2] + 0.0,
    ):
        per_chain = function(draws[:, 20:]).mean(axis=1)
        error = per_chain.std(ddof=1) / np.sqrt(len(per_chain))
        assert abs(per_chain.mean() - law @ function(states)) < 4.6 * error
    assert read <= expected + A.sum(axis=1).max()


def test_updates_of_many_neighbours_read_few():
    n = 2000
    draws, read = potts_gibbs(np.full((n, n), 1 / n), 3, chains=2, n_draws=2, thin=100)
    assert read < 3 < n and draws.shape == (2, 2, n)


def test_bad_input_is_answered():
    with pytest.raises(tallmc.InvalidInput, match="be a symmetric matrix"):
        potts_gibbs(np.array([[0.0, 1.0], [0.5, 0.0]]), 2)
    with pytest.raises(tallmc.InvalidInput, match="Add a constant to the log factors"):
        potts_gibbs(-A, 2)
    with pytest.raises(tallmc.InvalidInput, match="expected must be a finite number and > 0"):
        potts_gibbs(A, 2, expected=0.0)
