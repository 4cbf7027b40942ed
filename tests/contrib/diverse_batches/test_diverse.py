"""Diversified minibatches: laws of the batches by enumeration, and the bias of estimated weights.

`test_unbiased.py` enumerates the estimates of the k-DPP.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import FEATURES, SUBSAMPLES, linear, logistic, residual_matrix
from tallmc.contrib.diverse_batches import (
    Determinantal,
    PoissonDisk,
    eigenvector_probabilities,
    log_symmetric,
)
from test_unbiased import determinantal_law

SIZE, DRAWS = 3, 50_000


def diverse_selection(name):
    method = tallmc.Method(subsample=SUBSAMPLES[name], batch_size=SIZE, step_size=0.1)
    return method.prepare(logistic()).kernel.kernel.selection


def weights_z(selection, draws=DRAWS):
    """Largest |z| of Σ w_i 1(i ∈ S) against 1, for every row i.

    The weights of Poisson disks have an error of their own, that of the simulated batches.
    """
    drawn = selection.draw(jax.random.key(3), draws)
    n_rows = len(selection.inverse)
    sums = np.zeros((draws, n_rows))
    np.add.at(sums, (np.arange(draws)[:, None], drawn.indices), np.asarray(drawn.weights))
    simulated = SUBSAMPLES["poisson-disk"].simulated
    own = 1 / draws if not hasattr(selection, "radius") else 1 / draws + 1 / simulated
    return np.max(np.abs(sums.mean(0) - 1) / (sums.std(0) * np.sqrt(own)))


def test_symmetric_polynomials_are_the_coefficients_of_the_product():
    values = np.array([0.3, 2.0, 0.7, 1.1, 5.0])
    for count in range(1, 6):
        expected = np.abs(np.poly(values[:count]))[:4]
        found = np.exp(log_symmetric(np.log(values), 3)[count])
        np.testing.assert_allclose(found[: len(expected)], expected, rtol=1e-12)
        assert not found[len(expected) :].any()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_probabilities_of_eigenvectors_by_enumeration(size):
    values = np.array([0.3, 2.0, 0.7, 1.1, 5.0])
    sets = list(itertools.combinations(range(5), size))
    weight = np.array([np.prod(values[list(s)]) for s in sets])
    expected = [sum(w for s, w in zip(sets, weight, strict=True) if j in s) for j in range(5)]
    marginal = eigenvector_probabilities(np.log(values), size)[1]
    np.testing.assert_allclose(marginal, np.array(expected) / weight.sum(), rtol=1e-12)


def test_inclusion_probabilities_of_the_k_dpp_by_enumeration():
    law = determinantal_law(SIZE, 0.1)
    expected = [sum(p for s, p in law.items() if i in s) for i in range(5)]
    selection = diverse_selection("determinantal")
    np.testing.assert_allclose(1 / np.asarray(selection.inverse), expected, rtol=1e-10)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sets_are_drawn_with_the_probability_of_their_determinant(size):
    method = tallmc.Method(
        subsample=Determinantal(FEATURES, floor=0.1), batch_size=size, step_size=0.1
    )
    selection = method.prepare(logistic()).kernel.kernel.selection
    indices = np.sort(np.asarray(selection.draw(jax.random.key(0), DRAWS).indices), axis=1)
    for rows, p in determinantal_law(size, 0.1).items():
        share = np.mean(np.all(indices == rows, axis=1))
        assert abs(share - p) < 4.6 * np.sqrt(p * (1 - p) / DRAWS), rows


def test_large_batches_of_many_features_have_finite_weights_that_sum_to_the_size():
    """Symmetric polynomials of degree 60 of 240 values overflow without logarithms."""
    method = tallmc.Method(subsample=Determinantal(), batch_size=60, step_size=0.1)
    selection = method.prepare(linear(n_rows=500, dim=3)).kernel.kernel.selection
    inclusion = 1 / np.asarray(selection.inverse)
    assert inclusion.max() <= 1 + 1e-9
    np.testing.assert_allclose(inclusion.sum(), 60, rtol=1e-9)
    drawn = np.asarray(selection.draw(jax.random.key(0), 5).indices)
    assert all(len(set(rows)) == 60 for rows in drawn)


def exact_counts(selection, n_rows=5):
    """The mean and variance of how often each row is in a batch, over all candidates."""
    m = selection.tries * selection.size
    candidates = jnp.array(list(itertools.product(range(n_rows), repeat=m)))
    batches = np.asarray(jax.jit(jax.vmap(selection.batch_from))(candidates))
    counts = np.stack([(batches == i).sum(axis=1) for i in range(n_rows)], axis=1)
    return counts.mean(0), counts.var(0), batches


def test_weights_of_poisson_disks_are_estimated_within_their_errors():
    selection = diverse_selection("poisson-disk")
    mean, variance, _ = exact_counts(selection)
    simulated = SUBSAMPLES["poisson-disk"].simulated
    found = 1 / np.asarray(selection.inverse)
    assert np.max(np.abs(found - mean) / np.sqrt(variance / simulated)) < 4.6
    assert np.ptp(mean) > 0.1  # the probabilities do differ


def test_bias_of_poisson_disks_is_that_of_an_average_over_the_simulated_batches():
    """Σ (π_i/π̂_i − 1) r_i against its sd; equal weights have a bias that is far larger."""
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    method = tallmc.Method(subsample=SUBSAMPLES["poisson-disk"], batch_size=SIZE, step_size=0.1)
    kernel = method.prepare(posterior).kernel.kernel
    mean, variance, _ = exact_counts(kernel.selection)
    r = residual_matrix(kernel.gradient, posterior.rows, position)
    simulated = SUBSAMPLES["poisson-disk"].simulated
    bias = (mean * np.asarray(kernel.selection.inverse) - 1) @ r
    sd = np.sqrt((variance / mean**2 / simulated) @ r**2)
    # Counts of different rows are negatively correlated, which this sd leaves out.
    assert np.max(np.abs(bias) / sd) < 4.6
    assert np.max(np.abs((mean * 5 / 3 - 1) @ r) / sd) > 10


def greedy_batch(candidates):
    """The batch from these candidates, one candidate after the other."""
    accepted, refused = [], []
    for row in candidates:
        far = all(np.sum((FEATURES[row] - FEATURES[other]) ** 2) > 1.0 for other in accepted)
        (accepted if far else refused).append(row)
    return (accepted + refused)[:SIZE]


def test_rows_of_a_disk_batch_keep_their_distance_where_candidates_allow():
    selection = diverse_selection("poisson-disk")
    rng = np.random.default_rng(0)
    candidates = rng.integers(0, 5, (500, selection.tries * SIZE))
    found = jax.vmap(selection.batch_from)(jnp.asarray(candidates))
    np.testing.assert_array_equal(found, [greedy_batch(one) for one in candidates])


@pytest.mark.parametrize(
    "subsample",
    [pytest.param(Determinantal(), marks=pytest.mark.smoke), PoissonDisk(simulated=2000)],
)
def test_default_features_run(subsample):
    method = tallmc.Method(subsample=subsample, batch_size=4, step_size=0.01)
    assert tallmc.sample(linear(n_rows=40), method, chains=2, n_draws=50).ok.all()


@pytest.mark.parametrize(
    ("subsample", "size", "said"),
    [
        (Determinantal(FEATURES), 5, "size must be at most 4, the rank of the features"),
        (Determinantal(FEATURES[:4]), 2, "features must be a matrix of finite numbers"),
        (PoissonDisk(features=np.full((5, 1), np.nan)), 2, "features must be a matrix"),
        (Determinantal(), tallmc.subsample.TargetNoise(2, noise=1.0), "size must be fixed"),
    ],
)
def test_what_cannot_be_drawn_is_refused(subsample, size, said):
    with pytest.raises(tallmc.InvalidInput, match=said):
        tallmc.Method(subsample=subsample, batch_size=size, step_size=0.1).prepare(logistic())
