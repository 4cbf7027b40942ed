"""Models with several linear predictors agree with automatic differentiation of log densities."""

import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
import pytest
import scipy.stats

import tallmc
from problems import design
from tallmc import models
from tallmc.core.linear_maps import DenseMap
from tallmc.rows import Batch

N_ROWS, DIM = 60, 3
X = design(N_ROWS, DIM) / 2
RESPONSES = 3 + 2 * np.random.default_rng(7).normal(size=N_ROWS)


def softmax_density(params, row):
    return jax.nn.log_softmax(jnp.concatenate([jnp.zeros(1), row.x @ params["beta"]]))[
        row.y.astype(int)
    ]


def softmax_prior(params):
    return jnp.sum(stats.norm.logpdf(params["beta"], 0, jnp.sqrt(2.0)))


def negative_binomial_density(params, row):
    mean, shape = jnp.exp(row.x @ params["beta"]), jnp.exp(-params["log_dispersion"])
    return stats.nbinom.logpmf(row.y, shape, shape / (shape + mean))


def negative_binomial_prior(params):
    coefficients = jnp.sum(stats.norm.logpdf(params["beta"], 0, jnp.sqrt(2.0)))
    return coefficients + stats.norm.logpdf(params["log_dispersion"], 0, 2.0)


def linear_density(params, row):
    return stats.norm.logpdf(row.y, row.x @ params["beta"], jnp.exp(params["log_scale"]))


def linear_prior(params):
    coefficients = jnp.sum(stats.norm.logpdf(params["beta"], 0, jnp.sqrt(2.0)))
    return coefficients + stats.norm.logpdf(params["log_scale"], np.log(RESPONSES.std()), 3.0)


def make(name):
    rng = np.random.default_rng(1)
    if name == "linear":
        posterior = models.linear_regression(X, RESPONSES, prior_variance=2.0)
        return posterior, linear_density, linear_prior
    if name == "softmax":
        posterior = models.softmax_regression(X, rng.integers(0, 4, N_ROWS), prior_variance=2.0)
        return posterior, softmax_density, softmax_prior
    posterior = models.negative_binomial_regression(X, rng.poisson(2.0, N_ROWS), prior_variance=2.0)
    return posterior, negative_binomial_density, negative_binomial_prior


@pytest.fixture(params=["softmax", "negative_binomial", "linear"])
def pair(request):
    """A model with linear predictors, the same model as two log densities, and a position."""
    posterior, density, prior = make(request.param)
    init = posterior.layout.unravel(posterior.init)
    general = tallmc.Posterior(density, prior, posterior.data, init)
    position = jnp.asarray(np.random.default_rng(2).normal(size=posterior.dim) / 3)
    return posterior, general, position


def test_potential_gradient_and_hessian_are_those_of_the_densities(pair):
    closed, general, position = pair
    np.testing.assert_allclose(closed.gradient(position), general.gradient(position), rtol=1e-9)
    np.testing.assert_allclose(
        closed.hessian(position), general.hessian(position), rtol=1e-8, atol=1e-10
    )
    moved = closed.potential(2 * position) - closed.potential(position)
    by_densities = general.potential(2 * position) - general.potential(position)
    np.testing.assert_allclose(moved, by_densities, rtol=1e-9)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_remainders_are_those_of_the_densities(pair, order):
    closed, general, position = pair
    centre, rows = 0.7 * position, closed.data
    compact = closed.model.remainders(order, position, centre, rows)
    dense = general.model.remainders(order, position, centre, rows)
    np.testing.assert_allclose(closed.model.expand(compact, rows), dense, rtol=1e-7, atol=1e-10)
    norms = closed.model.norms(compact, rows), general.model.norms(dense, rows)
    np.testing.assert_allclose(*norms, rtol=1e-7, atol=1e-10)
    weights = jnp.asarray(np.random.default_rng(3).uniform(0.5, 2, N_ROWS))
    sums = [
        p.model.sum_remainders(order, position, centre, Batch(rows, weights))
        for p in (closed, general)
    ]
    np.testing.assert_allclose(*sums, rtol=1e-7, atol=1e-9)


def test_curvature_norms_are_those_of_the_densities(pair):
    closed, general, position = pair
    factor = jnp.asarray(np.random.default_rng(4).normal(size=(closed.dim, closed.dim)))
    norms = [p.model.curvature_norms(position, factor, p.data) for p in (closed, general)]
    np.testing.assert_allclose(*norms, rtol=1e-8)


def test_mean_square_remainders_are_those_of_the_densities(pair):
    """Both models use the same probes, so the estimates agree up to rounding."""
    closed, general, position = pair
    rng = np.random.default_rng(5)
    metric = DenseMap(jnp.asarray(np.tril(rng.normal(size=(closed.dim, closed.dim)))))
    positions = position + jnp.asarray(rng.normal(size=(5, closed.dim))) / 10
    found = [
        p.model.mean_square_remainders(2, position, positions, metric, p.data)
        for p in (closed, general)
    ]
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_softmax_gradients_are_lipschitz():
    posterior, rng = make("softmax")[0], np.random.default_rng(0)
    model, rows, largest = posterior.model, posterior.data, np.asarray(posterior.lipschitz())
    for _ in range(100):
        a, b = (
            jnp.asarray(of)
            for of in rng.normal(size=(2, posterior.dim)) * rng.choice([0.1, 1.0, 5.0])
        )
        change = model.row_gradients(a, rows) - model.row_gradients(b, rows)
        ratio = np.asarray(model.norms(change, rows)) / np.linalg.norm(a - b)
        assert (ratio <= largest * (1 + 1e-9)).all()


def test_negative_binomial_is_that_of_scipy():
    posterior, beta, log_dispersion = make("negative_binomial")[0], np.array([0.3, -0.2, 0.1]), 0.4
    position = jnp.asarray([*beta, log_dispersion])
    shape, mean = np.exp(-log_dispersion), np.exp(X @ beta)
    expected = scipy.stats.nbinom.logpmf(
        np.asarray(posterior.data.y), shape, shape / (shape + mean)
    )
    potentials = posterior.model.row_potentials(position, posterior.data)
    np.testing.assert_allclose(potentials, -expected, rtol=1e-10)


@pytest.mark.slow
def test_the_default_samples_a_softmax_regression():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(6000), rng.normal(size=6000)])
    beta = np.array([[0.3, -0.5], [1.0, -1.0]])
    scores = np.column_stack([np.zeros(6000), x @ beta]) + rng.gumbel(size=(6000, 3))
    draws = tallmc.sample(
        models.softmax_regression(x, scores.argmax(axis=1), 10.0), ess=400, seed=0
    )
    assert draws.params["beta"].shape[2:] == (2, 2)
    z = (draws.positions.mean(axis=(0, 1)) - beta.ravel()) / draws.positions.std(axis=(0, 1))
    assert np.abs(z).max() < 4.6


def batched_density(mean, rows):
    return -0.5 * jnp.sum((rows - mean) ** 2, axis=1)


def density_of_row(mean, row):
    return -0.5 * jnp.sum((row - mean) ** 2)


def flat(mean):
    return 0.0


def test_a_batched_log_likelihood_is_that_of_its_rows():
    by_row = tallmc.Posterior(density_of_row, flat, X, jnp.zeros(DIM))
    at_once = tallmc.Posterior(batched_density, flat, X, jnp.zeros(DIM), batched=True)
    position = jnp.array([0.1, 0.2, -0.3])
    np.testing.assert_allclose(at_once.gradient(position), by_row.gradient(position), rtol=1e-12)
    gradients = [p.model.row_gradients(position, p.data) for p in (by_row, at_once)]
    np.testing.assert_allclose(*gradients, rtol=1e-12)
    with pytest.raises(tallmc.InvalidInput, match="one floating-point number per row"):
        tallmc.Posterior(density_of_row, flat, X, jnp.zeros(DIM), batched=True)


@pytest.mark.parametrize("y", [[0, 1, 5], [0, 1, 0.5], [-1, 0, 1]])
def test_classes_are_checked(y):
    with pytest.raises(tallmc.InvalidInput, match=r"y must be a class \(0 to 2\) in every row"):
        models.softmax_regression(np.ones((3, 1)), y, 1.0, classes=3)
