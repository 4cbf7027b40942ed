"""Softmax regression is sampled, batched densities are those of rows, classes are checked."""

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import design
from tallmc import models

N_ROWS, DIM = 60, 3
X = design(N_ROWS, DIM) / 2


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
