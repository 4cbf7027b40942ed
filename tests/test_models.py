"""Models agree with automatic differentiation and known posteriors, and are stable."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.scipy.stats as jstats
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import by_autodiff, design, exact_posterior, slow_after
from tallmc import models
from tallmc.rows import Batch

N_ROWS, DIM = 200, 3
X = design(N_ROWS, DIM)
LOG_DENSITY = {
    "logistic": lambda z, y: y * z - jnp.logaddexp(0.0, z),
    "linear": lambda z, y: jstats.norm.logpdf(y, z, jnp.sqrt(0.7)),
    "poisson": lambda z, y: jstats.poisson.logpmf(y, jnp.exp(z)),
}


def normal_log_likelihood(params, row):
    return jstats.norm.logpdf(row.y, row.x @ params["beta"], 1.0)


def glm(name):
    rng = np.random.default_rng(1)
    if name == "logistic":
        return models.logistic_regression(
            X, rng.integers(0, 2, N_ROWS), prior_variance=[1.0, 2.0, 3.0]
        )
    if name == "linear":
        return models.linear_regression(
            X, rng.normal(size=N_ROWS), prior_variance=2.0, noise_variance=0.7
        )
    return models.poisson_regression(X / 3, rng.poisson(1.0, N_ROWS), prior_variance=2.0)


@run_once
def compared(posterior, position, factor, weights):
    """What closed forms and automatic differentiation are compared by."""
    model, rows = posterior.model, posterior.data
    expanded = lambda compact: model.expand(compact, rows)
    arguments = position, 0.7 * position, rows
    return {
        "gradient": posterior.gradient(position),
        "Hessian": posterior.hessian(position),
        "derivative": jax.grad(posterior.potential)(position),
        "rise": posterior.potential(2 * position) - posterior.potential(position),
        "norms": model.norms(model.row_gradients(position, rows), rows),
        "remainders": [expanded(model.remainders(order, *arguments)) for order in (0, 1, 2)],
        "sums": [
            model.sum_remainders(order, *arguments[:2], Batch(rows, weights)) for order in (0, 1, 2)
        ],
        "curvature": model.curvature_norms(position, factor, rows),
    }


@pytest.mark.parametrize("name", slow_after(1, LOG_DENSITY))
def test_closed_forms_are_the_derivatives(name):
    closed = glm(name)
    variance = jnp.broadcast_to(closed.model.prior.variance, DIM)
    general = tallmc.Posterior(
        lambda beta, row: LOG_DENSITY[name](row.x @ beta, row.y),
        lambda beta: jnp.sum(jstats.norm.logpdf(beta, 0, jnp.sqrt(variance))),
        closed.data,
        closed.init,
    )
    rng = np.random.default_rng(3)
    arguments = (
        np.array([0.3, -0.2, 0.4]),
        rng.normal(size=(DIM, DIM)),
        rng.uniform(0.5, 2, N_ROWS),
    )
    arguments = [jnp.asarray(part) for part in arguments]
    found, expected = (compared(posterior, *arguments) for posterior in (closed, general))
    jax.tree.map(
        lambda *pair: np.testing.assert_allclose(*pair, rtol=1e-9, atol=1e-9), found, expected
    )
    for key in ("gradient", "Hessian"):
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-10)
    np.testing.assert_allclose(found["gradient"], found["derivative"], rtol=1e-10)


@pytest.mark.parametrize("name", ["logistic", "linear"])
def test_lipschitz_constants_bound_the_change_of_every_gradient(name):
    posterior, rng = glm(name), np.random.default_rng(0)
    L, model, rows = np.asarray(posterior.lipschitz()), posterior.model, posterior.data
    pairs = rng.normal(size=(200, 2, DIM)) * rng.choice([0.01, 1.0, 10.0], size=(200, 1, 1))

    @run_once
    @jax.vmap
    def changes(pair):
        return model.norms(
            model.row_gradients(pair[0], rows) - model.row_gradients(pair[1], rows), rows
        )

    lengths = np.linalg.norm(pairs[:, 0] - pairs[:, 1], axis=1)
    ratio = (np.asarray(changes(jnp.asarray(pairs))) / lengths[:, None]).max(axis=0)
    assert (ratio <= L * (1 + 1e-9)).all()
    assert (ratio / L).max() > 0.8


def test_poisson_has_no_lipschitz_constant():
    with pytest.raises(
        tallmc.InvalidInput,
        match="have Lipschitz gradients for this method; got the Poisson family",
    ):
        glm("poisson").lipschitz()


@run_once
def sums_and_rows(posterior, position):
    model, rows = posterior.model, posterior.data
    return {
        "row": model.row_potentials(position, rows),
        "slope": model.row_gradients(position, rows),
        "potential": posterior.potential(position),
        "gradient": posterior.gradient(position),
        "Hessian": posterior.hessian(position),
        "derivative": jax.grad(posterior.potential)(position),
    }


PREDICTORS = [-1000.0, -100.0, -20.0, -1e-3, 0.0, 20.0, 100.0, 1000.0]
# Single precision overflows and loses digits first. Double precision does so at the ends.
STABLE = [(z, y, dtype) for z in PREDICTORS for y in (0, 1) for dtype in (np.float32, np.float64)]
STABLE.sort(key=lambda case: case[2] is np.float64 and abs(case[0]) < 1000)


@pytest.mark.parametrize(("z", "y", "dtype"), slow_after(20, STABLE))
def test_logistic_is_stable(z, y, dtype):
    posterior = models.logistic_regression(np.array([[z]], dtype), [y], prior_variance=10.0)
    assert posterior.dtype == dtype
    position = jnp.ones(1, dtype)
    signed = np.longdouble(z if y == 0 else -z)
    potential = np.logaddexp(np.longdouble(0), signed)
    slope = (1 if y == 0 else -1) / (1 + np.exp(-signed))
    tolerance = 3 * np.finfo(dtype).eps * max(1.0, abs(z) / 20)
    tiny = np.finfo(dtype).tiny
    found = sums_and_rows(posterior, position)
    np.testing.assert_allclose(found["row"][0], float(potential), rtol=tolerance, atol=tiny)
    np.testing.assert_allclose(found["slope"][0], float(slope), rtol=tolerance, atol=tiny)
    for value in found.values():
        assert np.isfinite(value).all()
        assert value.dtype == dtype


@pytest.mark.parametrize("z", [-1000.0, -50.0, 0.0, 80.0])
def test_poisson_and_linear_are_stable_in_single_precision(z):
    x = np.ones((1, 1), np.float32)
    for posterior in (
        models.poisson_regression(x, [3], prior_variance=10.0),
        models.linear_regression(x, [3], prior_variance=10.0, noise_variance=1.0),
    ):
        found = sums_and_rows(posterior, jnp.asarray([z], jnp.float32))
        assert all(np.isfinite(value).all() for value in found.values())


def test_gaussian_posterior_is_the_conjugate_one():
    rng = np.random.default_rng(0)
    S, prior = np.array([[1.0, 0.3], [0.3, 2.0]]), np.array([[5.0, -1.0], [-1.0, 3.0]])
    rows = rng.multivariate_normal([0.0, 1.0], S, size=500)
    posterior = models.gaussian(rows, S, prior_mean=[0.5, -0.5], prior_covariance=prior)
    precision = np.linalg.inv(prior) + 500 * np.linalg.inv(S)
    mean = np.linalg.solve(
        precision, np.linalg.solve(prior, [0.5, -0.5]) + 500 * np.linalg.solve(S, rows.mean(0))
    )
    anchor = tallmc.anchor.find_anchor(posterior)
    np.testing.assert_allclose(anchor.position, mean, rtol=1e-8)
    np.testing.assert_allclose(anchor.covariance, np.linalg.inv(precision), rtol=1e-8)
    np.testing.assert_allclose(posterior.lipschitz(), np.linalg.eigvalsh(np.linalg.inv(S))[-1])


def test_sums_over_many_rows_keep_single_precision_accuracy():
    """A sum of a million float32 terms has errors of a few roundings, unlike a running sum."""
    n_rows = 1_000_000
    rng = np.random.default_rng(0)
    x = np.c_[np.ones(n_rows), rng.normal(size=n_rows)].astype(np.float32)
    posterior = models.logistic_regression(x, rng.random(n_rows) < 0.5, prior_variance=10.0)
    position = jnp.array([1.5, -0.5], jnp.float32)
    terms = np.asarray(posterior.model.row_gradients(position, posterior.data))
    exact = terms.astype(float) @ x.astype(float) + np.asarray(position, float) / 10
    _, gradient = posterior.model.potential_and_gradient(position, posterior.rows).float64()
    running = np.cumsum(terms * x[:, 0], dtype=np.float32)[-1]
    assert np.abs(gradient / exact - 1).max() < 4 * np.finfo(np.float32).eps
    assert abs(running / exact[0] - 1) > 40 * np.finfo(np.float32).eps


@pytest.mark.slow
def test_a_regression_written_by_hand_has_the_same_posterior():
    closed = models.linear_regression(
        X, X @ [1.0, 2.0, 3.0], prior_variance=2.0, noise_variance=1.0
    )
    general = by_autodiff(closed, normal_log_likelihood)
    mean, covariance = exact_posterior(closed)
    for posterior in (closed, general):
        anchor = tallmc.anchor.find_anchor(posterior)
        np.testing.assert_allclose(anchor.position, mean, rtol=1e-8)
        np.testing.assert_allclose(anchor.covariance, covariance, rtol=1e-8)


def test_a_posterior_is_shown_in_one_line():
    posterior = models.logistic_regression(np.eye(3), np.ones(3), prior_variance=1.0)
    assert repr(posterior) == "<ModelPosterior: 3 rows, 3 parameters>"
    told = dataclasses.replace(posterior, description={"family": "bernoulli"})
    assert repr(told).endswith("3 parameters; family: bernoulli>")
