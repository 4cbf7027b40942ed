"""The confidence sampler: its bound covers, and its decisions are those of all rows."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_austerity import N_ROWS, decisions, regression

import tallmc
from tallmc.contrib.austerity import SequentialMoments
from tallmc.contrib.confidence import ConfidentDecision, confidence_mh

N_TALL = 20_000


@functools.cache
def tall():
    """Many rows of similar length, for which the remainders have narrow bounds."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(N_TALL, 2))
    y = rng.random(N_TALL) < 1 / (1 + np.exp(-x @ [0.4, -0.6]))
    return tallmc.models.logistic_regression(x, y, prior_variance=2.0)


def decided(posterior, delta: float, batch: int, order: int, count: int = 400):
    """Decisions about random-walk moves, the rows that they read, and the exact decisions."""
    rng = np.random.default_rng(1)
    here = rng.normal(size=(count, 2))
    there = here + np.sqrt(0.5) * rng.normal(size=(count, 2))
    keys = jax.random.split(jax.random.key(2), count)
    log_uniform = jnp.asarray(-rng.exponential(size=count))
    bound = confidence_mh(0.5, delta, batch, order).prepare(posterior).kernel
    found = decisions(bound, jnp.asarray(here), jnp.asarray(there), keys, log_uniform)
    return [np.asarray(part) for part in found]


def limits(population: np.ndarray, n: int, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """m − μ and the bound for every subset of n values, with R twice the largest |D|."""
    decision = ConfidentDecision(
        len(population), n, jnp.asarray(delta), jnp.asarray(np.abs(population).max())
    )

    @jax.jit
    @jax.vmap
    def of_sample(values):
        mean = jnp.mean(values)
        squares = jnp.sum((values - mean) ** 2)
        read = SequentialMoments(jnp.int32(1), jnp.int32(n), mean, squares)
        return mean, decision.limit(read, jnp.ones(()))

    subsets = np.array(list(itertools.combinations(population, n)))
    means, bounds = of_sample(subsets)
    return np.asarray(means) - population.mean(), np.asarray(bounds)


@pytest.mark.parametrize("n", [4, 9])
def test_the_bound_covers_by_enumeration_of_all_samples(n):
    """Of values with one outlier, on both sides; at δ near 1 the bound is narrowest."""
    population = np.r_[np.linspace(-1, 1, 11), 3.0]
    for delta, sign in itertools.product((0.05, 0.9), (-1, 1)):
        error, bound = limits(sign * population, n, delta)
        assert (error > bound).mean() <= 6 * delta / np.pi**2
        assert (bound > 0).all()


def test_the_bound_is_that_of_bernstein_and_serfling():
    """Transcribed, for a sample of less and of more than half of the values."""
    population = np.array([0.2, -1.0, 0.5, 0.9, -0.3, 0.1])
    for n, rho in ((2, 1 - 1 / 6), (4, (1 - 4 / 6) * (1 + 1 / 4))):
        level = np.log(5 * np.pi**2 / (6 * 0.1))
        first = np.array(next(itertools.combinations(population, n)))
        kappa = 7 / 3 + 3 / np.sqrt(2)
        expected = first.std() * np.sqrt(2 * rho * level / n) + kappa * 2.0 * level / n
        np.testing.assert_allclose(limits(population, n, 0.1)[1][0], expected, rtol=1e-12)


@pytest.mark.smoke
def test_decisions_are_wrong_at_most_as_often_as_promised_and_read_fewer_rows():
    delta = 0.1
    accept, n_rows, exact = decided(tall(), delta, 100, order=2)
    assert 0.2 < exact.mean() < 0.9
    assert (accept != exact).mean() <= delta
    assert n_rows.mean() < 0.2 * N_TALL


def test_log_likelihoods_themselves_take_all_rows_here():
    """R of order 0 is large, as in the paper without proxies: the decisions are then exact."""
    accept, n_rows, exact = decided(regression(), 0.1, 100, order=0)
    assert n_rows.mean() > 0.95 * N_ROWS
    np.testing.assert_array_equal(accept, exact)


def test_draws_are_labelled_as_approximate():
    method = confidence_mh(0.5, batch=40)
    assert not method.exact
    draws = tallmc.sample(
        regression(), method, chains=4, n_draws=500, measure_bias=False, progress=False, seed=1
    )
    assert "wrong decisions of the sequential tests was not measured" in draws.report.unknown


def test_bad_input_is_answered():
    for wrong in ({"delta": 0.0}, {"delta": 1.0}, {"batch": 0}, {"order": 4}):
        with pytest.raises(tallmc.InvalidInput, match=next(iter(wrong))):
            confidence_mh(0.5, **wrong)
