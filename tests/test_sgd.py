"""The mode by plain stochastic gradient descent: its steps, the law of its end, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import exact_posterior, linear, logistic
from stationary import fixed_point, gradient_covariance
from tallmc._anchor.optimisers import _descend

CHAINS = 4000


def test_sgd_is_a_plain_transcription():
    posterior = logistic(n_rows=300, dim=2)
    optimiser = tallmc.anchor.SGD(step_size=2e-3, steps=200, size=10, seed=4)
    found = tallmc.anchor.find_anchor(posterior, optimiser=optimiser, hessian=False)
    theta = np.zeros(2)
    x, y = np.asarray(posterior.data.x), np.asarray(posterior.data.y)
    for key in jax.random.split(jax.random.key(4), 200):
        i = np.asarray(jax.random.randint(key, (10,), 0, 300))
        g = theta / 2.0 + 300 / 10 * ((1 / (1 + np.exp(-x[i] @ theta)) - y[i]) @ x[i])
        theta = theta - 2e-3 * g
    np.testing.assert_allclose(found.position, theta, rtol=1e-10)
    assert found.n_row_evals == 200 * 10 + 300


def transcription_error(rule) -> float:
    """The difference between the end of a few steps of a rule and that of plain descent."""
    posterior, steps, size, step_size = linear(), 5, 3, 0.004
    x, y = np.asarray(posterior.data.x), np.asarray(posterior.data.y)
    key, step = jax.random.key(0), jnp.asarray(step_size)
    found = run_once(lambda key: _descend(rule, posterior, posterior.init, step, steps, size, key))
    theta, keys = np.asarray(posterior.init), jax.random.split(key, steps)
    for of_step in keys:
        i = np.asarray(jax.random.randint(of_step, (size,), 0, len(x)))
        g = theta / 4.0 + len(x) / size * (x[i] @ theta - y[i]) @ x[i] / 1.5
        theta = theta - step_size * g
    return float(np.abs(np.asarray(found(key)) - theta).max())


def test_a_few_steps_are_a_plain_transcription():
    assert transcription_error(tallmc.anchor.SGD.rule) < 1e-12


def sgd_covariance(posterior, step_size, size):
    """S = MSMᵀ + a² E Cov(g | θ), M = I − aH: the law of SGD's iterates on a Gaussian."""
    bound = tallmc.methods.sgld(0.1, batch_size=size).prepare(posterior).kernel
    _, covariance = exact_posterior(posterior)
    noise, d = gradient_covariance(bound), posterior.dim
    M = np.eye(d) - step_size * np.linalg.inv(covariance)
    return fixed_point(lambda S: M @ S @ M.T + step_size**2 * noise(S), d)


def covariance_z(rule, step_size, of_step_size) -> float:
    """Largest |z| of the covariance of many ends against the law of descent with `of_step_size`."""
    posterior, size, steps = linear(), 3, 2000
    step = jnp.asarray(step_size)
    many = jax.vmap(lambda key: _descend(rule, posterior, posterior.init, step, steps, size, key))
    ends = np.asarray(many(jax.random.split(jax.random.key(0), CHAINS)))
    moved = ends - exact_posterior(posterior)[0]
    products = np.einsum("ki,kj->kij", moved, moved)
    errors = products.std(0) / np.sqrt(CHAINS)
    return np.abs((products.mean(0) - sgd_covariance(posterior, of_step_size, size)) / errors).max()


@pytest.mark.slow
def test_ends_have_the_stationary_law_of_descent_on_a_gaussian():
    assert covariance_z(tallmc.anchor.SGD.rule, 0.004, of_step_size=0.004) < 4.6
    assert covariance_z(tallmc.anchor.SGD.rule, 0.004, of_step_size=0.005) > 4.6


def test_variance_of_the_end_is_as_stated_in_one_dimension():
    """av/(λ(2 − aλ)), with v the noise at the end's own law."""
    posterior, step_size, size = linear(dim=1), 0.004, 3
    bound = tallmc.methods.sgld(0.1, batch_size=size).prepare(posterior).kernel
    _, covariance = exact_posterior(posterior)
    S = sgd_covariance(posterior, step_size, size)
    v, curvature = float(gradient_covariance(bound)(S)[0, 0]), 1 / float(covariance[0, 0])
    stated = step_size * v / (curvature * (2 - step_size * curvature))
    np.testing.assert_allclose(S[0, 0], stated, rtol=1e-9)


@pytest.mark.slow
def test_anchor_by_sgd_samples_the_same_posterior():
    posterior = linear(n_rows=200)
    curvature = np.linalg.eigvalsh(np.asarray(posterior.hessian(posterior.init))).max()
    optimiser = tallmc.anchor.SGD(step_size=0.05 / curvature, steps=2000, size=20)
    with pytest.warns(UserWarning, match="from the mode"):
        anchor = tallmc.anchor.find_anchor(posterior, optimiser=optimiser)
    assert 0.1 < anchor.decrement < 5
    gradient = tallmc.gradient.ControlVariate().prepare(posterior, anchor)
    everything = tallmc.gradient.Batch(posterior.data, jnp.ones(200))
    at = anchor.position + 0.3
    np.testing.assert_allclose(gradient(at, everything), posterior.gradient(at), rtol=1e-10)


def test_a_step_that_is_too_large_is_said_to_be():
    with pytest.raises(tallmc.PreparationError, match=r"SGD .* diverged with step_size = 10"):
        tallmc.anchor.find_anchor(
            linear(), optimiser=tallmc.anchor.SGD(step_size=10.0, steps=1000, size=3)
        )


def test_a_bad_row_is_named_rather_than_the_step_size():
    def log_likelihood(theta, row):
        return -row * theta**2

    data = np.array([1.0, np.nan, 1.0])
    posterior = tallmc.Posterior(
        log_likelihood=log_likelihood, log_prior=lambda theta: -(theta**2), data=data, init=0.5
    )
    with pytest.raises(tallmc.PreparationError, match="row 1, counted from 0"):
        tallmc.anchor.find_anchor(
            posterior, optimiser=tallmc.anchor.SGD(step_size=1e-3, steps=50, size=3)
        )
