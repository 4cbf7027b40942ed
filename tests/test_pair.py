"""Pairs of chains, one at a step size and one at half of it.

Each chain has its own exact law, and their difference measures the bias.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import linear
from stationary import exact_law, gradient_covariance
from tallmc.gradient import ControlVariate
from tallmc.methods import pairs as pairs_module
from tallmc.methods.abstract import ErrorBudget, visited_noise
from tallmc.methods.automatic import anchored
from tallmc.methods.automatic.anchored import Pilot, run_pairs
from tallmc.subsample import Preferential

STEP = 0.8


def bound_kernel_with(size, step, order=1):
    method = tallmc.Method(
        dynamics=tallmc.dynamics.LeimkuhlerMatthews(),
        gradient=ControlVariate(order),
        geometry=tallmc.geometry.Dense(),
        subsample=Preferential("curvature"),
        batch_size=size,
        step_size=step,
    )
    return method.prepare(linear()).kernel


@functools.cache
def pairs(order, *, chains=256, steps=400, seed=0):
    start = jnp.broadcast_to(tallmc.anchor.find_anchor(linear()).position, (chains, 2))
    bound = bound_kernel_with(6, STEP, order)
    return run_pairs(bound, start, n_draws=steps, burn_in=60, seed=seed)


@pytest.mark.slow
def test_the_bias_of_gradient_noise_is_that_of_the_exact_laws():
    found = pairs(order=1)
    coarse, fine = (exact_law(bound_kernel_with(6, step), step) for step in (STEP, STEP / 2))
    # Twice the difference of the standard deviations, to first order, in units of the fine one.
    exact = np.diag(coarse.covariance) / np.diag(fine.covariance) - 1
    assert exact.min() > 0.01
    z = (found.bias.sd - exact) / found.bias.sd_error
    assert np.abs(z).max() < 4.6
    assert np.abs(found.bias.mean / found.bias.mean_error).max() < 4.6
    assert np.all(found.bias.sd > 5 * found.bias.sd_error), (
        "the pairs must be close enough to show the bias"
    )

    truth = exact_law(bound_kernel_with(6, 1e-4), 1e-4).covariance
    whole = np.sqrt(np.diag(coarse.covariance) / np.diag(truth)) - 1
    assert np.all(found.bias.sd > 0.8 * whole), "the reported bias must cover the whole bias"


@pytest.mark.slow
def test_pairs_share_their_noise():
    """The error of their difference is a quarter or less of that of independent chains."""
    found = pairs(order=2, chains=64)
    independent = np.sqrt(2 * (4 - STEP) / STEP / (64 * 400))
    assert np.all(found.bias.mean_error / 2 < independent / 4)


@pytest.mark.slow
def test_without_noise_on_a_gaussian_there_is_no_bias():
    """Order 2 has no noise on a quadratic potential, and the scheme is exact there at any step."""
    found = pairs(order=2)
    assert not found.failed
    assert np.abs(found.bias.mean / found.bias.mean_error).max() < 4.6
    assert np.abs(found.bias.sd / found.bias.sd_error).max() < 4.6
    assert found.noise < 1e-20


def test_the_noise_by_parameter_is_that_of_the_exact_law():
    """noise_j = (CCᵀ Cov(∇f̂) CCᵀ)_jj in units of the variance.

    It is averaged over the law of the fine chain.
    """
    found = pairs(order=1)
    bound = bound_kernel_with(6, STEP / 2)
    law = exact_law(bound, STEP / 2)
    shape = np.asarray(tallmc.anchor.find_anchor(linear()).covariance)
    of_gradient = gradient_covariance(bound)(law.covariance)
    noise = np.diag(shape @ of_gradient @ shape) / np.diag(law.covariance)
    fixed = bound_kernel_with(6, STEP)
    measured = [
        visited_noise(fixed.composition, fixed.rows, found.positions, seed) for seed in range(16)
    ]
    variance = found.positions.var(axis=(0, 1))
    by_parameter = np.array([of_seed.by_parameter for of_seed in measured]) / variance
    np.testing.assert_allclose(by_parameter.mean(axis=0), noise, rtol=0.05)
    worst = max(by_parameter[0].max(), measured[0].per_coordinate)
    np.testing.assert_allclose(found.noise, worst)


@pytest.mark.slow
def test_a_step_too_large_is_a_failure():
    start = jnp.broadcast_to(tallmc.anchor.find_anchor(linear()).position, (4, 2))
    bound = bound_kernel_with(6, 9.0)
    assert run_pairs(bound, start, n_draws=200, burn_in=0, seed=0).failed


def test_rows_are_counted_for_both_chains():
    found, fixed = pairs(order=1), bound_kernel_with(6, STEP)
    of_noise = visited_noise(fixed.composition, fixed.rows, found.positions, 0).n_row_evals
    assert found.n_row_evals == 256 * (60 + 400) * (6 + 2 * 6) + of_noise


def test_pairs_run_on_until_the_bias_is_known_well_enough():
    start = jnp.broadcast_to(tallmc.anchor.find_anchor(linear()).position, (4, 2))
    bound, budget = bound_kernel_with(6, STEP), ErrorBudget(mean_bias=0.06, sd_bias=0.06)
    settings = {"n_draws": 50, "burn_in": 60, "seed": 0}
    short = run_pairs(bound, start, **settings)
    long = run_pairs(bound, start, precise_for=budget, **settings)
    assert short.bias.imprecision(budget) > 0.8 >= long.bias.imprecision(budget)
    np.testing.assert_array_equal(long.positions[:, :50], short.positions)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_pilot(seed):
    first, second = (pairs.__wrapped__(order=1, chains=4, steps=20, seed=seed) for _ in range(2))
    np.testing.assert_array_equal(first.positions, second.positions)


def test_every_check_of_a_plan_has_keys_of_its_own(monkeypatch):
    """Pairs start where those of the check before ended: the same noise would come twice."""
    posterior, keys = linear(), []
    anchor = tallmc.anchor.find_anchor(posterior)

    def failing(bound, start, *, seed, number, **settings):
        made = pairs_module.chain_keys(
            seed, len(start), pairs_module._PAIRS_PURPOSE + (number << 8)
        )
        keys.append(jax.random.key_data(made).tobytes())
        return Pilot(None, np.zeros((1, 1, 2)), np.nan, 0, True)

    monkeypatch.setattr(anchored, "run_pairs", failing)
    geometry = tallmc.geometry.Dense()
    planner = anchored.AnchoredPlanner(posterior, anchor, 1, geometry, 1.0, ErrorBudget(), 0)
    assert planner.plan() is None
    assert len(set(keys)) == len(keys) > 2


def test_pairs_of_another_number_have_other_noise():
    start = jnp.broadcast_to(tallmc.anchor.find_anchor(linear()).position, (4, 2))
    bound = bound_kernel_with(6, STEP)
    first, again, other = (
        run_pairs(bound, start, n_draws=16, burn_in=2, seed=0, number=number).positions
        for number in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).min() > 0
