"""Full-data NUTS has exact moments, counts its rows and reports a missing BlackJAX."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import exact_posterior, linear, logistic
from tallmc.reference import nuts

LIMIT = 4.6
# Shared by all tests, because every other shape is compiled again.
SHAPE = {"chains": 16, "n_draws": 300, "warmup": 150}


def moment_z(x: np.ndarray, mean: float, variance: float) -> float:
    """Largest |z| of the mean and the second central moment of one parameter.

    Standard errors come from the spread of the averages of the chains.
    """
    z = []
    for values, truth in (x, mean), ((x - mean) ** 2, variance):
        per_chain = values.mean(1)
        z.append(abs(per_chain.mean() - truth) / (per_chain.std(ddof=1) / len(per_chain) ** 0.5))
    return max(z)


@pytest.fixture(scope="module")
def anchor():
    return tallmc.anchor.find_anchor(linear())


@pytest.fixture(scope="module")
def draws(anchor):
    return nuts(linear(), **SHAPE, anchor=anchor, seed=3)


@pytest.mark.slow
def test_moments_of_a_linear_regression_are_exact(draws):
    posterior = linear()
    mean, covariance = exact_posterior(posterior)
    for j in range(posterior.dim):
        assert moment_z(draws.positions[..., j], mean[j], covariance[j, j]) < LIMIT
    products = np.prod(draws.positions - mean, axis=2).mean(1)
    assert (
        abs(products.mean() - covariance[0, 1]) / (products.std(ddof=1) / len(products) ** 0.5)
        < LIMIT
    )


def test_rows_are_counted_from_integration_steps(draws, anchor):
    posterior = linear()
    steps, counted = draws.sample_stats["n_steps"], draws.sample_stats["n_row_evals"]
    assert (np.diff(counted, axis=1) == posterior.n_rows * steps[:, 1:]).all()
    assert (draws.sample_stats["batch_size"] == posterior.n_rows * steps).all()
    assert (counted[:, 0] >= posterior.n_rows * (1 + SHAPE["warmup"] + steps[:, 0])).all()
    assert draws.n_row_evals_sampling == counted[:, -1].sum()
    # One pass checks the anchor, another evaluates f at the start.
    assert draws.n_row_evals_preparation == anchor.n_row_evals + 2 * posterior.n_rows
    assert draws.ok.all() and not draws.sample_stats["diverging"].any()
    assert (2 ** draws.sample_stats["tree_depth"] > steps).all()
    assert 0.7 < draws.sample_stats["acceptance_rate"].mean() < 0.95
    assert draws.settings["method"].startswith("NUTS")
    assert draws.summary().shape[0] == posterior.dim


@pytest.mark.slow
def test_the_same_seed_gives_the_same_draws_and_another_gives_others(draws, anchor):
    again, other = (nuts(linear(), **SHAPE, anchor=anchor, seed=seed).positions for seed in (3, 4))
    first = draws.positions
    assert (first == again).all()
    assert (first != other).any(axis=2).all()
    assert (first[0] != first[1]).any()


@pytest.mark.slow
def test_a_short_warm_up_of_many_parameters_leaves_steps_long():
    """With a dense mass matrix, which 60 steps cannot estimate, a draw took 54 steps."""
    posterior = logistic(400, 30)
    anchor = tallmc.anchor.find_anchor(posterior)
    short = nuts(posterior, chains=2, n_draws=50, warmup=60, anchor=anchor)
    assert short.sample_stats["n_steps"].mean() < 40


@pytest.mark.slow
def test_draws_of_a_logistic_regression_agree_with_quadrature():
    posterior = logistic(n_rows=8, dim=1)
    grid = np.linspace(-10, 10, 4001)
    log_density = -np.asarray(
        jax.vmap(lambda value: posterior.potential(value[None]))(jnp.asarray(grid))
    )
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    mean = weight @ grid
    x = nuts(posterior, **SHAPE, seed=1).positions[..., 0]
    assert moment_z(x, mean, weight @ (grid - mean) ** 2) < LIMIT


@pytest.mark.slow
def test_small_parts_of_a_large_potential_survive_single_precision():
    """float32 resolves a potential of 8·10⁷ only to 8, but its difference from the start well."""
    rng = np.random.default_rng(0)
    x = np.c_[np.ones(4000), rng.normal(size=4000)].astype(np.float32)
    y = x @ [1.0, -0.5] + 200 * rng.normal(size=4000)
    single = tallmc.models.linear_regression(x, y, prior_variance=10.0, noise_variance=1.0)
    mean, covariance = exact_posterior(
        tallmc.models.linear_regression(x.astype(float), y, prior_variance=10.0, noise_variance=1.0)
    )
    draws = nuts(
        single, chains=16, n_draws=200, warmup=50, anchor=tallmc.anchor.find_anchor(single)
    )
    assert draws.positions.dtype == np.float32
    assert draws.sample_stats["acceptance_rate"].mean() > 0.7  # aimed at: 0.8
    # Rounding errors of 0.7, from sums over 128 rows, took the step size to 8e-4: 1,012 steps.
    assert draws.sample_stats["n_steps"].mean() < 10
    for j in range(2):
        assert moment_z(draws.positions[..., j].astype(float), mean[j], covariance[j, j]) < LIMIT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chains": 0}, "chains must be an int of at least 1; got 0"),
        ({"n_draws": 0}, "draws must be an int of at least 1; got 0"),
        ({"warmup": 5}, "warmup must be an int of at least 20; got 5"),
        ({"seed": -1}, "seed must be an int"),
        ({"anchor": "mode"}, "anchor must come from find_anchor"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(tallmc.InvalidInput, match=message):
        nuts(linear(), **arguments)


def test_a_missing_blackjax_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "blackjax", None)
    with pytest.raises(ImportError, match=r'pip install "tallmc\[reference\]"'):
        nuts(linear())


def test_a_start_without_density_is_refused():
    posterior = tallmc.Posterior(
        log_likelihood=lambda params, row: jnp.log(params["scale"]) - params["scale"] * row,
        log_prior=lambda params: -params["scale"],
        data=np.ones(3),
        init={"scale": -1.0},
    )
    with pytest.raises(tallmc.PreparationError, match="not finite at the start"):
        nuts(posterior)
