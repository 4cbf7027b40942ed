"""Strata: the allocation of draws, the noise that is left, and the clusters that are found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import design, linear, logistic, residual_matrix
from tallmc.subsample import Fixed, Stratified
from tallmc.subsample.selection import SubsampleContext
from tallmc.subsample.stratified import StratifiedSelection, allocate

POSITION = jnp.array([0.7, -1.3])


def noise(residuals, labels, draws) -> np.ndarray:
    """Σ_h (N_h²/n_h) C_h."""
    parts = [residuals[labels == label] for label in np.unique(labels)]
    return sum(
        len(part) ** 2 / n * np.cov(part.T, ddof=0) for part, n in zip(parts, draws, strict=True)
    )


def prepared(posterior, subsample, size):
    return (
        tallmc.Method(subsample=subsample, batch_size=size, step_size=0.1).prepare(posterior).kernel
    )


def simple_gradient(posterior):
    return tallmc.methods.sgld(0.1, batch_size=6).prepare(posterior).kernel.kernel.gradient


@pytest.mark.parametrize("seed", range(20))
def test_allocation_is_whole_complete_and_nearest_to_the_shares(seed):
    rng = np.random.default_rng(seed)
    shares, at_least = rng.lognormal(0, 1.5, rng.integers(1, 12)), int(rng.integers(1, 3))
    size = at_least * len(shares) + int(rng.integers(0, 60))
    draws = allocate(size, shares, at_least)
    assert draws.sum() == size
    assert draws.min() >= at_least
    # Strata above the minimum share the other draws in proportion, to within one draw.
    above = draws > at_least
    if above.any():
        ideal = shares * (draws[above].sum() / shares[above].sum())
        assert np.abs(draws - ideal)[above].max() < 1 + above.sum() / size
        assert (ideal[~above] < at_least + 1).all()


def test_allocation_by_largest_remainders():
    np.testing.assert_array_equal(allocate(10, np.array([46.0, 24.0, 30.0])), [5, 2, 3])
    np.testing.assert_array_equal(allocate(7, np.array([3.0, 3.0, 1.0])), [3, 3, 1])
    np.testing.assert_array_equal(allocate(3, np.array([1e6, 0.0, 0.0])), [1, 1, 1])
    np.testing.assert_array_equal(allocate(6, np.array([0.1] * 3), 2), [2, 2, 2])


def test_proportional_strata_never_have_more_noise_than_uniform_draws():
    """With n_h = n N_h/N exactly, the saving is the scatter of the means of the strata."""
    posterior, rng = logistic(n_rows=24), np.random.default_rng(0)
    for _ in range(10):
        labels = rng.permutation(np.repeat([0, 1, 2], [12, 8, 4]))
        kernel = prepared(posterior, Stratified(labels), 6).kernel
        np.testing.assert_array_equal(kernel.selection.draws, [3, 2, 1])
        r = residual_matrix(simple_gradient(posterior), posterior.rows, POSITION)
        saved = 24**2 / 6 * np.cov(r.T, ddof=0) - noise(r, labels, [3, 2, 1])
        means = np.stack([r[labels == label].mean(0) for label in range(3)]) - r.mean(0)
        scatter = 24 / 6 * (means.T * [12, 8, 4]) @ means
        np.testing.assert_allclose(saved, scatter, atol=1e-12 * np.abs(r).max() ** 2 * 24**2)
        assert np.linalg.eigvalsh(saved).min() > -1e-9


def test_neyman_is_the_allocation_with_the_least_noise_at_the_mode():
    posterior = logistic(n_rows=40)
    labels = np.repeat([0, 1, 2], [20, 12, 8])
    anchor = tallmc.anchor.find_anchor(posterior)
    choice = Stratified(labels, allocation="neyman")
    draws = choice.prepare(SubsampleContext(posterior, anchor), Fixed(15)).draws
    r = residual_matrix(simple_gradient(posterior), posterior.rows, anchor.position)
    trace = {
        (a, b): np.trace(noise(r, labels, [a, b, 15 - a - b]))
        for a in range(1, 14)
        for b in range(1, 15 - a)
    }
    # Rounding to whole draws may miss the best by one draw.
    best = min(trace, key=trace.get)
    assert np.abs(np.array(draws[:2]) - best).max() <= 1
    assert trace[tuple(int(n) for n in draws[:2])] < 1.02 * trace[best]
    proportional = Stratified(labels).prepare(SubsampleContext(posterior), Fixed(15)).draws
    assert np.abs(np.array(proportional[:2]) - best).max() > 1
    assert choice.needs == tallmc._anchor.anchor.AnchorLevel.MODE


@pytest.mark.slow
def test_passes_over_the_rows_are_counted():
    posterior = linear(n_rows=50)
    anchor = tallmc.anchor.find_anchor(posterior)
    labels = np.arange(50) % 3

    def passes(subsample):
        method = tallmc.Method(subsample=subsample, batch_size=10, step_size=0.1)
        uniform = tallmc.methods.sgld(0.1, batch_size=10)
        rows, without = (of.prepare(posterior, anchor).n_row_evals for of in (method, uniform))
        return (rows - without) / 50

    assert passes(Stratified(labels)) == 0
    assert passes(Stratified(labels, "neyman")) == 1
    assert passes(Stratified(3, "neyman")) == 2


def test_every_draw_is_uniform_in_its_stratum():
    labels = np.array([3, 9, 3, 3, 9, 3, 9, 4])
    stratum_of_row = np.unique(labels, return_inverse=True)[1]
    selection = StratifiedSelection.of(stratum_of_row, np.array([2, 1, 2]), jnp.float64)
    indices = np.asarray(selection.draw(jax.random.key(0), 50_000).indices)
    for draw, label in enumerate([3, 3, 4, 9, 9]):
        counts = np.bincount(indices[:, draw], minlength=8)
        assert counts[labels != label].sum() == 0
        p = 1 / (labels == label).sum()
        z = (counts[labels == label] - 50_000 * p) / np.sqrt(50_000 * p * (1 - p) + 1e-300)
        assert np.abs(z).max() < 4.6
    np.testing.assert_allclose(selection.weights, [2, 2, 1, 1.5, 1.5])


@pytest.mark.slow
def test_a_batch_tells_its_own_covariance():
    posterior, labels = logistic(n_rows=12), np.repeat([0, 1], [7, 5])
    bound = prepared(posterior, Stratified(labels, at_least=2), 5)
    kernel, rows = bound.kernel, bound.rows
    batches = kernel.gather(kernel.draw(jax.random.key(0), 100_000), rows).selection
    spread_of = jax.vmap(lambda batch: kernel.estimate(POSITION, batch, rows).spread)
    spread = np.asarray(run_once(spread_of)(batches))
    products = np.einsum("kni,knj->kij", spread, spread)
    residuals = residual_matrix(kernel.gradient, rows, POSITION)
    expected = noise(residuals, labels, kernel.selection.draws)
    z = (products.mean(0) - expected) / (products.std(0) / np.sqrt(len(products)))
    assert np.abs(z).max() < 4.6
    assert Stratified(labels, at_least=2).knows_its_spread


def test_one_draw_in_a_stratum_cannot_be_judged():
    selection = StratifiedSelection.of(np.array([0, 0, 1, 1]), np.array([1, 2]), jnp.float64)
    spread = np.asarray(selection.spread(jnp.ones((3, 2))))
    assert np.isnan(spread[0]).all() and (spread[1:] == 0).all()
    assert not Stratified(2).knows_its_spread


def squared_log_likelihood(param, row):
    return -((param - row["x"][0]) ** 2)


def flat_log_prior(param):
    return 0.0 * param


@pytest.mark.slow
def test_clusters_are_found_whatever_the_scale_of_the_columns():
    """Four groups in many blocks of rows.

    It takes two columns to separate them, one of small numbers and one of large numbers.
    """
    rng = np.random.default_rng(0)
    group = rng.integers(0, 4, 30_000)
    centres = 10.0 * np.stack([group // 2, group % 2, np.zeros_like(group)], axis=1)
    x = (centres + rng.normal(size=(30_000, 3)) * [1, 1, 0]) * [1e-3, 1e3, 1]
    posterior = tallmc.Posterior(squared_log_likelihood, flat_log_prior, {"x": x}, 0.0)
    selection = Stratified(4).prepare(SubsampleContext(posterior), Fixed(30))
    first = np.unique(np.asarray(selection.first))
    strata = np.split(np.asarray(selection.rows_by_stratum), first[1:])
    agreement = [np.bincount(group[rows], minlength=4).max() / len(rows) for rows in strata]
    assert len(strata) == 4
    assert min(agreement) > 0.99


def test_empty_clusters_are_dropped():
    x = np.repeat(design(3, 2), 4, axis=0)
    posterior = tallmc.models.linear_regression(
        x, np.repeat([0.0, 1.0, 2.0], 4), prior_variance=1.0, noise_variance=1.0
    )
    selection = prepared(posterior, Stratified(8), 6).kernel.selection
    assert len(selection.draws) == 3
    np.testing.assert_allclose(selection.weights, 2.0)


@pytest.mark.slow
def test_clusters_lower_the_noise():
    """The reason for CP: rows that are alike have gradients that are alike."""
    posterior = linear(n_rows=2000, dim=2)
    kernel = prepared(posterior, Stratified(10), 200).kernel
    selection = kernel.selection
    r = residual_matrix(kernel.gradient, posterior.rows, POSITION)
    rows, first = np.asarray(selection.rows_by_stratum), np.unique(np.asarray(selection.first))
    labels = np.zeros(2000, int)
    labels[rows] = np.searchsorted(first, np.arange(2000), side="right") - 1
    stratified = np.trace(noise(r, labels, selection.draws))
    uniform = 2000**2 / 200 * np.trace(np.cov(r.T, ddof=0))
    assert stratified < 0.8 * uniform
