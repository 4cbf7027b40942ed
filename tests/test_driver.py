"""Draws do not depend on how a run is split, and a failed chain affects no other chain."""

import dataclasses
import functools
import hashlib
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import linear, logistic, slow_after
from tallmc._core import supervision
from tallmc._engine import loop as _loop
from tallmc._engine import run as _run
from tallmc._engine import supply as _supply
from tallmc._engine.run import CallLength
from tallmc.dynamics import Hamiltonian, Langevin, NoseHoover
from tallmc.gradient import SAGA, SVRG
from tallmc.rows import ResidentRows
from tallmc.schedule import Polynomial
from tallmc.subsample import Bandit

RUNS = {
    "sgld-schedule": tallmc.methods.sgld(Polynomial(0.05, 10.0, 0.55), batch_size=3, replace=False),
    "sgld_cv_ps": tallmc.methods.sgld_cv_ps(0.01, batch_size=3),
    "asgld_cv": tallmc.methods.asgld_cv(0.01, noise_threshold=10.0),
    "mala": tallmc.methods.mala(0.05),
    "svrg-trajectories": tallmc.Method(
        dynamics=Hamiltonian(5, 0.5), gradient=SVRG(17), batch_size=3, step_size=0.1
    ),
    "saga-bandit-thermostat": tallmc.Method(
        dynamics=NoseHoover(2.0), gradient=SAGA(), subsample=Bandit(), batch_size=3, step_size=0.02
    ),
    "ewsg_vr": tallmc.methods.ewsg_vr(0.02, batch_size=3, friction=4.0, every=13),
    "carried-index": tallmc.methods.ewsg(0.02, batch_size=3, friction=4.0, carry=True),
    "psgld": tallmc.methods.psgld(0.01, batch_size=3),
    "leimkuhler-matthews": tallmc.methods.sgld_lm(0.01, batch_size=3),
}


def run(method, **settings):
    return tallmc.sample(
        linear(), method, **{"chains": 3, "n_draws": 700, "burn_in": 13, "seed": 7} | settings
    )


FIRST = ("sgld_cv_ps", "sgld-schedule", "saga-bandit-thermostat")


@pytest.mark.parametrize(
    "name", slow_after(3, [*FIRST, *(name for name in RUNS if name not in FIRST)])
)
def test_draws_do_not_depend_on_how_the_host_cuts_the_run(name, monkeypatch):
    method = RUNS[name]
    whole = run(method)
    # 37 divides neither the draws nor the block length.
    monkeypatch.setattr(CallLength, "next", lambda length, first: 37)
    cut = run(method)
    np.testing.assert_array_equal(whole.positions, cut.positions)
    for stat in whole.sample_stats:
        np.testing.assert_array_equal(whole.sample_stats[stat], cut.sample_stats[stat])
    assert whole.n_row_evals == cut.n_row_evals


@pytest.mark.parametrize(
    "name", slow_after(1, ["sgld-schedule", "asgld_cv", "mala", "svrg-trajectories"])
)
def test_thinning_and_burn_in_keep_the_steps_they_say(name):
    method = RUNS[name]
    every = run(method, burn_in=0, n_draws=713).positions
    np.testing.assert_array_equal(
        run(method, burn_in=13, n_draws=100, thin=7).positions, every[:, 13:][:, 6::7]
    )


class RowsOfADevice(ResidentRows):
    on_host = False


def test_gathering_rows_ahead_changes_nothing():
    method, settings = tallmc.methods.sgld(0.01, batch_size=3), {"chains": 3, "n_draws": 700}
    on_host = linear()
    on_device = dataclasses.replace(on_host, rows=RowsOfADevice(on_host.data))
    assert on_host.rows.on_host and not on_device.rows.on_host
    ahead, late = (tallmc.sample(p, method, **settings).positions for p in (on_host, on_device))
    np.testing.assert_allclose(late, ahead, rtol=1e-10)


def test_the_next_block_is_supplied_beside_the_steps_and_changes_nothing(monkeypatch):
    method, threads = tallmc.methods.sgld(0.01, batch_size=3), []
    block = _supply.Supply.block

    def spied(supply, group, number):
        threads.append(threading.current_thread().name)
        return block(supply, group, number)

    monkeypatch.setattr(_supply.Supply, "block", spied)
    # Threads of their own: others may still be at work for an earlier test.
    pool = ThreadPoolExecutor(2, thread_name_prefix="tallmc")
    monkeypatch.setattr(supervision, "_background", lambda: pool)
    found = []
    for cores in (2, 1):
        monkeypatch.setattr(supervision, "core_count", lambda cores=cores: cores)
        threads.clear()
        draws = tallmc.sample(linear(), method, chains=2, n_draws=1800, burn_in=0)
        assert any(name.startswith("tallmc") for name in threads) == (cores > 1)
        found.append(draws.positions)
    np.testing.assert_array_equal(*found)


class CountedLangevin(Langevin):
    traced: ClassVar[list[int]] = []

    def step(self, *args):
        self.traced.append(1)
        return super().step(*args)


@pytest.mark.usefixtures("monkeypatch")  # no program is loaded without tracing
def test_a_step_is_traced_once():
    method = tallmc.Method(dynamics=CountedLangevin(), batch_size=3, step_size=0.01)
    CountedLangevin.traced.clear()
    tallmc.sample(linear(), method, chains=2, n_draws=10)
    assert len(CountedLangevin.traced) == 1


def test_chains_are_different_and_do_not_depend_on_how_many_there_are():
    few, many = (
        run(tallmc.methods.sgld(0.01, batch_size=3), chains=2).positions,
        run(tallmc.methods.sgld(0.01, batch_size=3), chains=5).positions,
    )
    np.testing.assert_allclose(few, many[:2], rtol=1e-10)
    correlation = np.corrcoef(np.diff(many[..., 0], axis=1))
    assert np.abs(correlation - np.eye(5)).max() < 0.2
    other_seed = run(tallmc.methods.sgld(0.01, batch_size=3), chains=2, seed=8).positions
    assert np.abs(other_seed - few).min() > 0


@pytest.mark.slow
def test_the_same_seed_gives_the_same_draws_in_another_process():
    """`test_faults.py` compares the draws of a killed process with those of this one."""
    program = textwrap.dedent("""
        import hashlib, sys
        import jax
        jax.config.update("jax_enable_x64", True)
        sys.path.insert(0, sys.argv[1])
        import tallmc
        from problems import linear
        method = tallmc.methods.sgld_cv_ps(0.01, batch_size=3)
        draws = tallmc.sample(linear(), method, chains=3, n_draws=50, seed=11)
        print(hashlib.sha256(draws.positions.tobytes()).hexdigest())
    """)
    arguments = [sys.executable, "-c", program, str(Path(__file__).parent)]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=True)
    here = run(RUNS["sgld_cv_ps"], n_draws=50, burn_in=None, seed=11)
    assert ran.stdout.strip() == hashlib.sha256(here.positions.tobytes()).hexdigest()


def test_blocks_have_fresh_randomness():
    """A run of several blocks uses no noise twice."""
    posterior = linear()
    kernel = tallmc.methods.sgld(0.01, batch_size=3).prepare(posterior).kernel.kernel
    block = _supply.block_steps(kernel, posterior.rows)
    draws = tallmc.sample(
        posterior, tallmc.methods.ula(1e-12), chains=1, n_draws=3 * block, burn_in=0, seed=0
    )
    steps = np.diff(draws.positions[0, :, 0])
    assert len(np.unique(steps.round(12))) > 0.99 * len(steps)
    assert abs(np.corrcoef(steps[:block], steps[block : 2 * block])[0, 1]) < 4.6 / np.sqrt(block)


@functools.cache
def not_a_number_beyond_2_5() -> tallmc.Posterior:
    """A Gaussian mean whose log density is NaN beyond a limit."""
    return tallmc.Posterior(
        log_likelihood=lambda theta, row: (
            -0.5 * (theta - row) ** 2 + jnp.where(theta > 2.5, jnp.nan, 0.0) * theta
        ),
        log_prior=lambda theta: -0.5 * theta**2,
        data=np.linspace(0, 1, 10),
        init=0.5,
    )


def test_one_bad_chain_leaves_the_other_seven_bitwise_unchanged():
    posterior, method = not_a_number_beyond_2_5(), tallmc.methods.sgld(0.01, batch_size=2)
    start = np.linspace(0, 1, 8)[:, None]
    fine = tallmc.sample(posterior, method, chains=8, n_draws=300, burn_in=0, start=start)
    start[3] = 2.6
    with pytest.warns(tallmc.SamplingWarning, match="chain 3"):
        spoilt = tallmc.sample(posterior, method, chains=8, n_draws=300, burn_in=0, start=start)
    others = np.arange(8) != 3
    np.testing.assert_array_equal(spoilt.ok, others)
    np.testing.assert_array_equal(spoilt.positions[others], fine.positions[others])


def test_a_non_finite_chain_is_frozen_flagged_and_named():
    start = np.linspace(0, 1, 8)[:, None]
    start[1] = 2.6
    with pytest.warns(
        tallmc.SamplingWarning,
        match=r"1 of 8 chains reached a NaN.*step size smaller.*chain 1 at step 0",
    ):
        draws = tallmc.sample(
            not_a_number_beyond_2_5(),
            tallmc.methods.sgld(0.01, batch_size=2),
            chains=8,
            n_draws=50,
            burn_in=0,
            start=start,
        )
    outcome = tallmc.diagnose.Outcome
    assert draws.outcomes == (outcome.OK, outcome.NON_FINITE, *[outcome.OK] * 6)
    assert np.isnan(draws.positions[1]).all()
    assert np.isfinite(np.delete(draws.positions, 1, axis=0)).all()
    assert len(draws.summary()) == 1


def test_a_diverging_chain_is_flagged():
    with pytest.warns(tallmc.SamplingWarning, match="ran away"):
        draws = run(tallmc.methods.ula(5.0), n_draws=200)
    assert set(draws.outcomes) == {tallmc.diagnose.Outcome.DIVERGED}
    finite = np.isfinite(draws.positions).all(axis=2)
    assert not finite[:, -1].any()
    with pytest.raises(tallmc.InvalidInput, match="have a chain that completed"):
        draws.summary()


def test_scheduled_steps_are_recorded_and_used():
    schedule = Polynomial(0.05, 10.0, 0.55)
    draws = run(tallmc.methods.sgld(schedule, batch_size=3), thin=2, n_draws=20)
    last_step = 13 + 2 * np.arange(1, 21) - 1
    np.testing.assert_allclose(
        draws.sample_stats["step_size"][0], 0.05 * (10 + last_step) ** -0.55, rtol=1e-6
    )


@pytest.mark.slow
def test_scheduled_steps_move_by_their_own_size():
    """If the gradient is nearly zero, a step is √ε_t η, so its size must follow the schedule."""
    posterior = tallmc.models.linear_regression(
        np.full((2, 1), 1e-9), np.zeros(2), prior_variance=1e12, noise_variance=1.0
    )
    schedule = Polynomial(1.0, 1.0, 1.0)
    draws = tallmc.sample(
        posterior,
        tallmc.methods.ula(schedule),
        chains=400,
        n_draws=200,
        burn_in=0,
        start=np.zeros(1),
    )
    steps = np.diff(np.concatenate([np.zeros((400, 1)), draws.positions[..., 0]], axis=1), axis=1)
    scaled = steps / np.sqrt(1 / (1 + np.arange(200)))
    variance = scaled.var(axis=0)
    assert np.abs(variance - 1).max() < 4.6 * np.sqrt(2 / 400)


def test_rows_and_noise_come_from_different_words():
    """If rows and noise shared a key, rows in the upper half would coincide with positive noise."""
    kernel = (
        tallmc.methods.sgld(0.01, batch_size=2).prepare(linear(n_rows=1000, dim=2)).kernel.kernel
    )
    drawn = run_once(lambda key: kernel.draw(key, 20_000))(jax.random.key(0))
    upper = np.asarray(drawn.selection.indices) >= 500
    correlation = np.corrcoef(upper.ravel(), np.asarray(drawn.noise).ravel() > 0)[0, 1]
    assert abs(correlation) < 4.6 / np.sqrt(40_000)


def test_the_last_steps_before_the_counter_ends_are_recorded():
    posterior = linear()
    bound = tallmc.methods.ula(0.01).prepare(posterior).kernel
    run = _run.Run(bound, _run.chain_keys(0, 2), jnp.asarray(np.zeros((2, 2))), 2**31 - 11, 1, 10)
    run.step = 2**31 - 11
    run.run_to(10)
    assert len(np.unique(run.positions()[0, :, 0])) == 10


def test_kept_draws_do_not_hold_on_to_the_record():
    bound, keys = tallmc.methods.ula(0.01).prepare(linear()).kernel, _run.chain_keys(0, 2)
    run = _run.Run(bound, keys, jnp.asarray(np.zeros((2, 2))), burn_in=5, thin=3, n_draws=10)
    run.run_to(run.draws)
    assert all(block.positions.base is None for block in run.sink.blocks)
    assert sum(block.positions.nbytes for block in run.sink.blocks) == 2 * 10 * 2 * 8


@pytest.mark.slow
def test_a_failed_chain_costs_next_to_nothing_and_a_failed_run_ends():
    posterior = linear(n_rows=5000, dim=2)
    method, anchor = (
        tallmc.methods.asgld_cv(1e-5, noise_threshold=3e7),
        tallmc.anchor.find_anchor(posterior),
    )
    start = np.broadcast_to(np.asarray(anchor.position), (2, 2)).copy()
    start[1] = 1e10
    with pytest.warns(tallmc.SamplingWarning, match="1 of 2 chains ran away"):
        draws = tallmc.sample(
            posterior, method, chains=2, n_draws=300, burn_in=0, start=start, anchor=anchor
        )
    assert draws.sample_stats["batch_size"][1, 10:].max() == 1
    with pytest.warns(tallmc.SamplingWarning, match="2 of 2 chains ran away"):
        ended = tallmc.sample(
            posterior,
            method,
            chains=2,
            n_draws=10**6,
            burn_in=0,
            start=np.full((2, 2), 1e10),
            anchor=anchor,
        )
    assert ended.positions.shape == (2, 10**6, 2)
    assert np.isnan(ended.positions).all()
    assert ended.n_row_evals_sampling < 10**4


def test_chains_that_never_move_are_reported():
    with pytest.warns(tallmc.SamplingWarning, match=r"3 of 3 chains never moved \(0, 1, 2\)"):
        run(tallmc.methods.mala(1e6), n_draws=50)


@pytest.mark.slow
def test_chains_that_start_where_the_density_is_not_finite_are_reported():
    posterior = tallmc.models.poisson_regression(np.ones((3, 1)), [1, 2, 3], prior_variance=10.0)
    with pytest.warns(
        tallmc.SamplingWarning, match="4 of 4 chains reached a NaN or infinite position"
    ):
        tallmc.sample(posterior, tallmc.methods.mala(0.1), n_draws=20, start=np.full(1, 1000.0))


@pytest.mark.slow
def test_draws_far_wider_than_the_anchor_are_reported():
    posterior, method = logistic(n_rows=2000, dim=2), tallmc.methods.sgld_cv_ps(1.0, batch_size=4)
    with pytest.warns(tallmc.SamplingWarning, match="times the sd from the curvature at the mode"):
        tallmc.sample(posterior, method, chains=2, n_draws=500)


def test_positions_too_coarse_for_their_spread_are_reported():
    x = np.ones((100, 1), np.float32)
    posterior = tallmc.models.linear_regression(
        x, np.full(100, 3e6), prior_variance=1e14, noise_variance=1.0
    )
    with pytest.warns(tallmc.SamplingWarning, match="float32 resolves only"):
        tallmc.sample(posterior, tallmc.methods.mala(0.01), n_draws=300, start=np.full(1, 3e6))


def test_row_counts_are_what_was_touched():
    draws = run(tallmc.methods.sgld(0.01, batch_size=3), thin=2)
    steps = 13 + 2 * 700
    assert draws.n_row_evals == draws.n_row_evals_sampling == 3 * 3 * steps
    assert draws.n_row_evals_preparation == 0
    assert draws.sample_stats["n_row_evals"][0, -1] == 3 * steps
    mala = run(tallmc.methods.mala(0.01), n_draws=10)
    assert mala.n_row_evals == 3 * 12 * (13 + 10 + 1)  # one evaluation at the start
    anchor = tallmc.anchor.find_anchor(linear())
    prepared = run(tallmc.methods.sgld_cv_ps(0.01, batch_size=3), n_draws=10, anchor=anchor)
    # One pass checks that the anchor belongs to the posterior, another computes the weights.
    assert prepared.n_row_evals_preparation == anchor.n_row_evals + 12 + 12


def test_start_and_burn_in_defaults():
    anchored = run(tallmc.methods.sgld_cv(0.01, batch_size=3), burn_in=None, n_draws=200, thin=2)
    assert anchored.settings["burn_in"] == 40
    elsewhere = run(tallmc.methods.sgld(0.01, batch_size=3), burn_in=None, n_draws=200, thin=2)
    assert elsewhere.settings["burn_in"] == 400
    tiny = run(
        tallmc.methods.sgld(1e-20, batch_size=3),
        burn_in=0,
        n_draws=1,
        start={"beta": np.array([3.0, 4.0])},
    )
    np.testing.assert_allclose(tiny.positions[:, 0], [[3.0, 4.0]] * 3, atol=1e-8)


def test_interrupt_returns_the_draws_so_far():
    def interrupt(progress):
        if progress.draws >= 100:
            raise KeyboardInterrupt

    whole = run(tallmc.methods.sgld(0.01, batch_size=3), n_draws=5000)
    with pytest.warns(tallmc.SamplingWarning, match="interrupted after"):
        part = run(tallmc.methods.sgld(0.01, batch_size=3), n_draws=5000, callback=interrupt)
    n = part.positions.shape[1]
    assert 100 <= n < 5000
    np.testing.assert_array_equal(part.positions, whole.positions[:, :n])


def test_callback_hears_of_progress():
    heard = []
    run(tallmc.methods.sgld(0.01, batch_size=3), callback=heard.append)
    first = [p.is_preparing for p in heard].index(False)
    assert {p.stage for p in heard[:first]} >= {"starting the chains", "compiling the step"}
    heard = heard[first:]
    assert heard[-1].step == heard[-1].n_steps == 713
    assert heard[-1].draws == 700
    assert [p.ended for p in heard] == [False] * (len(heard) - 1) + [True]
    assert [p.step for p in heard[:-1]] == sorted({p.step for p in heard})


def test_nothing_is_compiled_again_for_other_seeds_steps_draws_or_data():
    def compiled(posterior, **settings):
        before = len(_loop.advance.programs)
        step = settings.pop("step_size", 0.01)
        tallmc.sample(
            posterior,
            tallmc.methods.sgld_cv_ps(step, batch_size=4),
            **{"chains": 2, "n_draws": 30} | settings,
        )
        return len(_loop.advance.programs) - before

    compiled(logistic(n_rows=40))
    assert compiled(logistic(n_rows=40), seed=5) == 0
    assert compiled(logistic(n_rows=40), step_size=0.02) == 0
    assert compiled(logistic(n_rows=40), n_draws=77, thin=3, burn_in=5) == 0
    assert compiled(logistic(n_rows=40, seed=9)) == 0
    assert compiled(logistic(n_rows=55, seed=9)) == 0
    assert compiled(logistic(n_rows=55, seed=9), chains=5) == 1, "another number per group"


def test_a_pytree_of_parameters_comes_back_as_one():
    rng = np.random.default_rng(0)
    posterior = tallmc.Posterior(
        log_likelihood=lambda p, row: (
            -0.5 * (row["y"] - p["slope"] @ row["x"] - p["intercept"]) ** 2
        ),
        log_prior=lambda p: -0.5 * (p["intercept"] ** 2 + jnp.sum(p["slope"] ** 2)),
        data={"x": rng.normal(size=(50, 2)), "y": rng.normal(size=50)},
        init={"intercept": 0.0, "slope": np.zeros(2)},
    )
    draws = tallmc.sample(posterior, tallmc.methods.sgld(0.01, batch_size=5), chains=2, n_draws=30)
    assert draws.params["intercept"].shape == (2, 30)
    assert draws.params["slope"].shape == (2, 30, 2)
    np.testing.assert_array_equal(draws.params["slope"], draws.positions[..., 1:])
