"""The sequential test of austerity: exact with all rows, and wrong about as often as it says."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import design, logistic_by_autodiff
from tallmc.contrib.austerity import permuted
from tallmc.methods.subsampled.thinning import Move

N_ROWS = 400


@pytest.mark.parametrize("count", [1, 2, 5, 64, 65, 1000])
def test_numbers_are_permuted(count):
    found = [permuted(jax.random.key(seed), jnp.arange(count), count) for seed in range(3)]
    for numbers in found:
        np.testing.assert_array_equal(np.sort(numbers), np.arange(count))
    if count >= 64:
        assert (found[0] != found[1]).any() and (found[0] != found[2]).any()


def test_every_row_comes_first_equally_often():
    keys = jax.random.split(jax.random.key(0), 20_000)
    first = jax.vmap(lambda key: permuted(key, jnp.arange(2), 5))(keys)
    for place in range(2):
        counts = np.bincount(first[:, place], minlength=5)
        z = (counts - 4000) / np.sqrt(20_000 * 0.2 * 0.8)
        assert np.abs(z).max() < 4.6


@functools.cache
def regression():
    rng = np.random.default_rng(0)
    x = design(N_ROWS, 2)
    y = rng.random(N_ROWS) < 1 / (1 + np.exp(-x @ [0.4, -0.6]))
    return tallmc.models.logistic_regression(x, y, prior_variance=2.0)


@functools.cache
def kernel_of(epsilon: float, batch: int, order: int = 0):
    method = tallmc.contrib.austerity.austerity_mh(0.5, epsilon=epsilon, batch=batch, order=order)
    return method.prepare(regression()).kernel


@eqx.filter_jit
def decisions(bound, here, there, keys, log_uniform):
    """The decisions about many moves, and those of all rows."""
    kernel, rows = bound.kernel, bound.rows
    surrogate, proposal = kernel.surrogate, kernel.proposal

    def of_move(here, there, key, log_uniform):
        moves = surrogate.metric.push(jnp.stack([here, there]))
        known = proposal.log_ratio(surrogate, here, there, jnp.asarray(0.5))
        known -= surrogate.excess(there, rows) - surrogate.excess(here, rows)
        move = Move(here, there, moves, known, log_uniform)
        found = kernel.decision.decide(surrogate.remainders, move, key, rows)
        potentials = [
            bound.posterior.model.prior_potential(surrogate.anchor + of)
            + jnp.sum(bound.posterior.model.row_potentials(surrogate.anchor + of, rows.columns))
            for of in moves
        ]
        return found.accept, found.n_rows, log_uniform < potentials[0] - potentials[1]

    return jax.vmap(of_move)(here, there, keys, log_uniform)


def decided(epsilon: float, batch: int, count: int = 4000, order: int = 0):
    """Decisions about random-walk moves, whose exact ratio is that of the potentials."""
    rng = np.random.default_rng(1)
    here = rng.normal(size=(count, 2))
    there = here + np.sqrt(0.5) * rng.normal(size=(count, 2))
    keys = jax.random.split(jax.random.key(2), count)
    log_uniform = jnp.asarray(-rng.exponential(size=count))
    bound = kernel_of(epsilon, batch, order)
    found = decisions(bound, jnp.asarray(here), jnp.asarray(there), keys, log_uniform)
    return map(np.asarray, found)


@pytest.mark.parametrize("order", [0, 2])
@pytest.mark.parametrize(("epsilon", "batch"), [(0.0, 30), (0.05, N_ROWS), (0.05, 10**6)])
def test_decisions_of_all_rows_are_those_of_metropolis_hastings(epsilon, batch, order):
    accept, n_rows, exact = decided(epsilon, batch, order=order)
    assert 0.2 < exact.mean() < 0.9
    np.testing.assert_array_equal(accept, exact)
    assert (n_rows == N_ROWS).all()


def wrong_share(epsilon: float, batch: int) -> float:
    accept, n_rows, exact = decided(epsilon, batch)
    assert batch <= n_rows.min() and n_rows.mean() < 0.95 * N_ROWS
    return (accept != exact).mean()


@pytest.mark.parametrize("epsilon", [0.01, 0.1])
def test_one_look_is_wrong_at_most_as_often_as_it_says(epsilon):
    """The second look reads all rows."""
    assert 0 < wrong_share(epsilon, N_ROWS // 2) < epsilon + 4.6 * np.sqrt(epsilon / 4000)


def test_several_looks_are_wrong_more_often_but_less_than_their_sum():
    epsilon, looks = 0.02, 9
    wrong = wrong_share(epsilon, 40)
    assert wrong_share(epsilon, N_ROWS // 2) < wrong < looks * epsilon
    assert wrong < wrong_share(5 * epsilon, 40)


def test_higher_orders_read_fewer_rows():
    rows = [decided(0.05, 40, order=order) for order in (0, 2)]
    of_order_0, of_order_2 = (list(found)[1].mean() for found in rows)
    assert of_order_2 < 0.7 * of_order_0


@pytest.mark.parametrize("check", [pytest.param(False, marks=pytest.mark.smoke), True])
def test_draws_are_labelled_as_approximate(check):
    method = tallmc.contrib.austerity.austerity_mh(0.5, batch=40)
    assert not method.exact and "wrong decisions" in method.unseen_by_pairs
    draws = tallmc.sample(
        regression(), method, chains=4, n_draws=2000, measure_bias=check, progress=False, seed=1
    )
    assert draws.report.verdict == "not checked", draws.report
    assert "wrong decisions of the sequential tests was not measured" in draws.report.unknown


def test_bad_input_is_answered():
    for wrong in ({"epsilon": 0.5}, {"epsilon": -0.1}, {"batch": 0}, {"order": 4}):
        with pytest.raises(tallmc.InvalidInput, match=next(iter(wrong))):
            tallmc.contrib.austerity.austerity_mh(0.5, **wrong)
    with pytest.raises(tallmc.InvalidInput, match="proposal must be one of"):
        tallmc.contrib.austerity.Austerity(step_size=0.5, proposal="hmc")
    with pytest.raises(tallmc.InvalidInput, match="posterior must have a bound"):
        tallmc.contrib.austerity.austerity_mh(0.5).prepare(logistic_by_autodiff())
