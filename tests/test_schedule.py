"""Schedules select the steps that give draws, and no schedule divides by zero."""

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import linear, slow_after
from tallmc._engine.run import Run, chain_keys
from tallmc.schedule import Constant, Cyclical, Polynomial

CYCLE = Cyclical(0.05, cycle=10, sampling=0.3)


def test_cyclical_steps_are_a_cosine_that_starts_anew():
    steps = np.asarray(CYCLE(jnp.arange(30)))
    np.testing.assert_allclose(
        steps[:10], 0.025 * (1 + np.cos(np.pi * np.arange(10) / 10)), rtol=1e-12
    )
    np.testing.assert_allclose(steps[10:20], steps[:10])
    assert (steps > 0).all()


@pytest.mark.parametrize(
    "schedule",
    [CYCLE, Cyclical(0.1, 7, 1.0), Cyclical(0.1, 3, 0.4), Constant(0.1), Polynomial(1.0, 1.0, 0.5)],
)
def test_counting_sampled_steps_and_finding_them_are_inverse(schedule):
    steps = np.arange(200)
    sampled = np.asarray(schedule.sampled(steps))
    assert (np.diff(sampled) >= 0).all() and (np.diff(sampled) <= 1).all()
    for count in range(1, sampled[-1]):
        needed = int(schedule.steps_until(count))
        assert schedule.sampled(needed) == count
        assert schedule.sampled(needed - 1) == count - 1


@pytest.mark.parametrize(("burn_in", "thin"), slow_after(2, [(0, 1), (25, 2), (13, 1), (4, 5)]))
def test_draws_come_from_the_sampling_phase_only(burn_in, thin):
    settings = {"chains": 2, "seed": 3}
    every = tallmc.sample(
        linear(),
        tallmc.methods.sgld(Cyclical(0.05, 10, 1.0), batch_size=3),
        n_draws=600,
        burn_in=0,
        **settings,
    ).positions
    draws = tallmc.sample(
        linear(),
        tallmc.methods.sgld(CYCLE, batch_size=3),
        n_draws=30,
        burn_in=burn_in,
        thin=thin,
        **settings,
    )
    phase = [t for t in range(burn_in, 600) if t % 10 >= 7]
    kept = phase[thin - 1 :: thin][:30]
    np.testing.assert_array_equal(draws.positions, every[:, kept])
    np.testing.assert_allclose(
        draws.sample_stats["step_size"][0], np.asarray(CYCLE(jnp.array(kept)))
    )
    np.testing.assert_array_equal(draws.sample_stats["n_row_evals"][0], 3 * (np.array(kept) + 1))


def test_first_and_last_step_may_be_equal():
    np.testing.assert_array_equal(Polynomial(0.1, 1.0, 0.0)(jnp.arange(3)), [0.1] * 3)
    assert np.isfinite(Cyclical(0.1, 2, 0.5)(jnp.arange(4))).all()


def test_a_constant_step_size_is_recorded_without_a_program(monkeypatch):
    bound = tallmc.methods.sgld(0.25, batch_size=3).prepare(linear()).kernel
    run = Run(bound, chain_keys(0, 1), linear().init[None], 0, 1, 8)
    monkeypatch.setattr(Constant, "__call__", None)
    np.testing.assert_array_equal(run._step_sizes(np.arange(9)), [0.25] * 9)
