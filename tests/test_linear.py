"""Linear regression with unknown noise scale: the exact posterior, raw columns, refusals."""

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from tallmc import models
from tallmc.models.generalised_linear import GeneralisedLinear

N_ROWS = 20_000


def exact_moments(x, y, prior_variance):
    """Means and sds of (beta, log_scale): Gaussian given the scale, quadrature over the scale."""
    x = np.asarray(x, float)
    n, d = x.shape
    gram, least_squares = x.T @ x, np.linalg.lstsq(x, y, rcond=None)[0]
    residuals = y - x @ least_squares
    log_sd, prior = np.log(residuals.std()), np.eye(d) / prior_variance
    log_sd_of_y, squares = np.log(np.std(y)), residuals @ residuals
    grid = log_sd + np.linspace(-8, 8, 201) / np.sqrt(2 * n)
    log_density, means, covariances = [], [], []
    for log_scale in grid:
        weight = np.exp(-2 * log_scale)
        covariance = np.linalg.inv(weight * gram + prior)
        mean = covariance @ (weight * gram @ least_squares)
        away = mean - least_squares
        misfit = weight * (squares + away @ gram @ away) + mean @ prior @ mean
        log_prior = -0.5 * ((log_scale - log_sd_of_y) / 3) ** 2
        determinant = np.linalg.slogdet(covariance)[1]
        log_density.append(log_prior - n * log_scale - 0.5 * misfit + 0.5 * determinant)
        means.append(mean)
        covariances.append(np.diag(covariance))
    weights = np.exp(np.array(log_density) - max(log_density))
    weights /= weights.sum()
    mean, log_scale = weights @ means, weights @ grid
    variance = weights @ covariances + weights @ (np.array(means) - mean) ** 2
    return (
        np.append(mean, log_scale),
        np.sqrt(np.append(variance, weights @ (grid - log_scale) ** 2)),
    )


def year_data(slope, noise_sd, dtype=np.float32):
    rng = np.random.default_rng(0)
    year = rng.integers(1990, 2026, N_ROWS)
    x = np.column_stack([np.ones(N_ROWS), year]).astype(dtype)
    return x, 1e6 + slope * (year - 2007) + noise_sd * rng.normal(size=N_ROWS)


@pytest.mark.slow
def test_the_default_samples_the_exact_posterior_of_noisy_data():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(N_ROWS), rng.normal(size=(N_ROWS, 4))]).astype(np.float32)
    y = x @ [3.0, 1.0, -2.0, 0.5, 10.0] + 50 * rng.normal(size=N_ROWS)
    posterior = models.linear_regression(x, y, prior_variance=1e4)
    draws = tallmc.sample(posterior, ess=6000, seed=0)
    mean, sd = exact_moments(x, y, 1e4)
    assert draws.params["log_scale"].shape == draws.positions.shape[:2]
    np.testing.assert_allclose(draws.positions.std(axis=(0, 1), dtype=float), sd, rtol=0.05)
    z = (draws.positions.mean(axis=(0, 1), dtype=float) - mean) / sd
    assert np.abs(z).max() < 4.6 / np.sqrt(draws.report.ess)


@pytest.mark.parametrize(("slope", "noise_sd"), [(100.0, 50.0), (3e3, 5e4)])
def test_a_raw_year_and_responses_near_a_million_are_resolved_in_single_precision(slope, noise_sd):
    x, y = year_data(slope, noise_sd)
    posterior = models.linear_regression(x, y, prior_variance=1e12)
    anchor = tallmc.anchor.find_anchor(posterior)
    mean, sd = exact_moments(x, y, 1e12)
    assert posterior.dtype == jnp.float32
    np.testing.assert_allclose(np.sqrt(np.diag(anchor.covariance)), sd, rtol=0.05)
    assert (np.abs(np.asarray(anchor.position) - mean) / sd).max() < 0.1


@pytest.mark.parametrize("n_rows", [8192, 20_001])
def test_hessians_of_raw_columns_keep_single_precision_accuracy(n_rows):
    """One float32 product over 8,192 rows is wrong by 1e-5, more than a year column can bear."""
    year = np.random.default_rng(0).integers(1990, 2026, n_rows)
    x = np.column_stack([np.ones(n_rows), year]).astype(np.float32)
    posterior = models.linear_regression(x, year, prior_variance=1e6, noise_variance=0.3)
    exact = x.astype(float).T @ x / np.float32(0.3) + np.eye(2) / 1e6
    hessian = posterior.model.full_hessian(posterior.init, posterior.rows).float64()
    assert np.abs(hessian / exact - 1).max() < 8 * np.finfo(np.float32).eps


def test_the_search_starts_where_the_hessian_is_positive_definite():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(50_000), rng.normal(size=50_000)])
    posterior = models.linear_regression(x, x @ [5.0, 20.0] + rng.normal(size=50_000), 1e4)
    assert np.linalg.eigvalsh(posterior.hessian(posterior.init))[0] > 0
    at_zero = posterior.hessian(jnp.array([0.0, 0.0, jnp.log(20.0)]))
    assert np.linalg.eigvalsh(at_zero)[0] < 0
    decrement = tallmc.anchor.find_anchor(
        posterior, at=posterior.layout.unravel(posterior.init)
    ).decrement
    assert decrement < 4.6 * np.sqrt(3 * 50_000 / 20_000)


def test_more_columns_than_rows_are_accepted_with_an_informative_prior():
    rng = np.random.default_rng(0)
    posterior = models.linear_regression(rng.normal(size=(5, 8)), rng.normal(size=5), 0.5)
    assert np.isfinite(posterior.potential(posterior.init))


def test_many_columns_start_at_zero_coefficients():
    y = np.random.default_rng(0).normal(size=20)
    posterior = models.linear_regression(np.ones((20, 501)), y, prior_variance=1.0)
    start = posterior.layout.unravel(posterior.init)
    np.testing.assert_array_equal(start["beta"], 0)
    np.testing.assert_allclose(start["log_scale"], np.log(y.std()), rtol=1e-12)


def test_a_known_noise_variance_gives_the_gaussian_model():
    posterior = models.linear_regression(np.eye(3), [1.0, 2.0, 3.0], 1.0, noise_variance=0.5)
    assert isinstance(posterior.model, GeneralisedLinear)
    assert posterior.layout.names == ("beta",)
    np.testing.assert_array_equal(posterior.hessian(posterior.init), 3 * np.eye(3))


X, Y = np.column_stack([np.ones(99), np.arange(99.0)]).astype(np.float32), np.sin(np.arange(99.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: (X, np.ones(99)), "y must vary, unless noise_variance is given; got equal"),
        (lambda: (X, X @ [1.0, 2.0]), "float32 resolves; got noise of sd .* Centre and scale"),
        (lambda: (X.astype(float), X @ [1.0, 2.0]), "float64 resolves; got noise of sd"),
        (lambda: (X[:, [0, 1, 1]], Y), "got columns that are collinear up to rounding"),
        (lambda: year_data(1e4, 50.0), "noise of sd 49.* and coefficients up to 1.91e"),
    ],
)
def test_noise_and_columns_beyond_the_precision_are_refused(make, message):
    with pytest.raises(tallmc.InvalidInput, match=message):
        models.linear_regression(*make(), prior_variance=1e14)


def test_the_cure_for_a_steep_year_works():
    """In float64, or centred in float32, the same data are accepted."""
    x, y = year_data(1e4, 50.0, np.float64)
    assert models.linear_regression(x, y, prior_variance=1e14).dtype == jnp.float64
    centred = (x - [0, x[:, 1].mean()]).astype(np.float32)
    assert models.linear_regression(centred, y - y.mean(), prior_variance=1e14).dtype == jnp.float32
