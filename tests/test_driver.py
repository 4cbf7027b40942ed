"""The driver: the same seed gives the same draws however the run is cut; one bad chain never spoils the others."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import linear, logistic
from tallmc import _loop, _sample
from tallmc.schedule import Polynomial

RUNS = {
    "sgld-schedule": tallmc.sgld(Polynomial(0.05, 10.0, 0.55), size=3, replace=False),
    "sgld_cv_ps": tallmc.sgld_cv_ps(0.01, size=3),
    "asgld_cv": tallmc.asgld_cv(0.01, noise_threshold=10.0),
    "mala": tallmc.mala(0.05),
}


def run(method, **settings):
    return tallmc.sample(linear(), method, **{"chains": 3, "draws": 700, "burn_in": 13, "seed": 7} | settings)


@pytest.mark.parametrize("name", RUNS)
def test_draws_do_not_depend_on_how_the_host_cuts_the_run(name, monkeypatch):
    method = RUNS[name]
    whole = run(method)
    monkeypatch.setattr(_sample, "_MOST_SLOTS", 37)  # no divisor of anything
    cut = run(method)
    np.testing.assert_array_equal(whole.positions, cut.positions)
    for stat in whole.sample_stats:
        np.testing.assert_array_equal(whole.sample_stats[stat], cut.sample_stats[stat])
    assert whole.n_row_evals == cut.n_row_evals


@pytest.mark.parametrize("name", RUNS)
def test_thinning_and_burn_in_keep_the_steps_they_say(name):
    method = RUNS[name]
    every = run(method, burn_in=0, draws=713).positions
    np.testing.assert_array_equal(run(method, burn_in=13, draws=100, thin=7).positions, every[:, 13:][:, 6::7])


def test_gathering_rows_ahead_changes_nothing(monkeypatch):
    ahead = run(tallmc.sgld_cv_ps(0.01, size=3)).positions
    monkeypatch.setattr(_loop, "_GATHER_FLOATS", 0)
    jax.clear_caches()
    np.testing.assert_allclose(run(tallmc.sgld_cv_ps(0.01, size=3)).positions, ahead, rtol=1e-10)


def test_chains_are_different_and_do_not_depend_on_how_many_there_are():
    few, many = run(tallmc.sgld(0.01, size=3), chains=2).positions, run(tallmc.sgld(0.01, size=3), chains=5).positions
    np.testing.assert_allclose(few, many[:2], rtol=1e-10)
    correlation = np.corrcoef(np.diff(many[..., 0], axis=1))
    assert np.abs(correlation - np.eye(5)).max() < 0.2
    other_seed = run(tallmc.sgld(0.01, size=3), chains=2, seed=8).positions
    assert np.abs(other_seed - few).min() > 0


def test_the_same_seed_gives_the_same_draws_in_another_process():
    program = textwrap.dedent("""
        import hashlib, sys
        import jax
        jax.config.update("jax_enable_x64", True)
        sys.path.insert(0, sys.argv[1])
        import tallmc
        from problems import linear
        draws = tallmc.sample(linear(), tallmc.sgld_cv_ps(0.01, size=3), chains=3, draws=50, seed=11)
        print(hashlib.sha256(draws.positions.tobytes()).hexdigest())
    """)
    here = str(__import__("pathlib").Path(__file__).parent)
    hashes = [
        subprocess.run([sys.executable, "-c", program, here], capture_output=True, text=True, check=True).stdout for _ in range(2)
    ]
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 65


def test_blocks_have_fresh_randomness():
    """More steps than one block has: no noise is used twice."""
    posterior = linear()
    kernel = tallmc.sgld(0.01, size=3).prepare(posterior).kernel
    block = _loop.block_steps(kernel)
    draws = tallmc.sample(posterior, tallmc.ula(1e-12), chains=1, draws=3 * block, burn_in=0, seed=0)
    steps = np.diff(draws.positions[0, :, 0])
    assert len(np.unique(steps.round(12))) > 0.99 * len(steps)
    assert abs(np.corrcoef(steps[:block], steps[block : 2 * block])[0, 1]) < 4.6 / np.sqrt(block)


def not_a_number_beyond(limit: float) -> tallmc.Posterior:
    """A Gaussian mean whose log density is NaN beyond a limit."""
    return tallmc.Posterior(
        log_likelihood=lambda theta, row: -0.5 * (theta - row) ** 2 + jnp.where(theta > limit, jnp.nan, 0.0) * theta,
        log_prior=lambda theta: -0.5 * theta**2,
        data=jnp.linspace(0, 1, 10),
        init=0.5,
    )


def test_one_bad_chain_leaves_the_other_seven_bitwise_unchanged():
    posterior, method = not_a_number_beyond(2.5), tallmc.sgld(0.01, size=2)
    start = np.linspace(0, 1, 8)[:, None]
    fine = tallmc.sample(posterior, method, chains=8, draws=300, burn_in=0, start=start)
    start[3] = 2.6
    with pytest.warns(tallmc.SamplingWarning, match="chain 3"):
        spoilt = tallmc.sample(posterior, method, chains=8, draws=300, burn_in=0, start=start)
    others = np.arange(8) != 3
    np.testing.assert_array_equal(spoilt.ok, others)
    np.testing.assert_array_equal(spoilt.positions[others], fine.positions[others])


def test_a_non_finite_chain_is_frozen_flagged_and_named():
    start = np.array([[0.0], [2.6], [0.5]])
    with pytest.warns(tallmc.SamplingWarning, match=r"1 of 3 chains reached a NaN.*step size smaller.*chain 1 at step 0"):
        draws = tallmc.sample(not_a_number_beyond(2.5), tallmc.sgld(0.01, size=2), chains=3, draws=50, burn_in=0, start=start)
    assert draws.outcomes == (tallmc.Outcome.OK, tallmc.Outcome.NON_FINITE, tallmc.Outcome.OK)
    assert np.isnan(draws.positions[1]).all()
    assert np.isfinite(draws.positions[[0, 2]]).all()
    assert len(draws.summary()) == 1


def test_a_diverging_chain_is_flagged():
    with pytest.warns(tallmc.SamplingWarning, match="ran away"):
        draws = run(tallmc.ula(5.0), draws=200)
    assert set(draws.outcomes) == {tallmc.Outcome.DIVERGED}
    finite = np.isfinite(draws.positions).all(axis=2)
    assert not finite[:, -1].any()
    with pytest.raises(tallmc.InvalidInput, match="have a chain that completed"):
        draws.summary()


def test_scheduled_steps_are_recorded_and_used():
    schedule = Polynomial(0.05, 10.0, 0.55)
    draws = run(tallmc.sgld(schedule, size=3), thin=2, draws=20)
    last_step = 13 + 2 * np.arange(1, 21) - 1
    np.testing.assert_allclose(draws.sample_stats["step_size"][0], 0.05 * (10 + last_step) ** -0.55, rtol=1e-6)


def test_row_counts_are_what_was_touched():
    draws = run(tallmc.sgld(0.01, size=3), thin=2)
    steps = 13 + 2 * 700
    assert draws.n_row_evals == draws.n_row_evals_sampling == 3 * 3 * steps
    assert draws.n_row_evals_preparation == 0
    assert draws.sample_stats["n_row_evals"][0, -1] == 3 * steps
    mala = run(tallmc.mala(0.01), draws=10)
    assert mala.n_row_evals == 3 * 12 * (13 + 10 + 1)  # one evaluation at the start
    anchor = tallmc.laplace(linear())
    prepared = run(tallmc.sgld_cv_ps(0.01, size=3), draws=10, anchor=anchor)
    assert prepared.n_row_evals_preparation == anchor.n_row_evals + 12


def test_start_and_burn_in_defaults():
    anchored = run(tallmc.sgld_cv(0.01, size=3), burn_in=None, draws=200, thin=2)
    assert anchored.settings["burn_in"] == 40
    elsewhere = run(tallmc.sgld(0.01, size=3), burn_in=None, draws=200, thin=2)
    assert elsewhere.settings["burn_in"] == 400
    tiny = run(tallmc.sgld(1e-20, size=3), burn_in=0, draws=1, start={"beta": np.array([3.0, 4.0])})
    np.testing.assert_allclose(tiny.positions[:, 0], [[3.0, 4.0]] * 3, atol=1e-8)


def test_interrupt_returns_the_draws_so_far():
    def interrupt(progress):
        if progress.draws >= 100:
            raise KeyboardInterrupt

    whole = run(tallmc.sgld(0.01, size=3), draws=5000)
    with pytest.warns(tallmc.SamplingWarning, match="interrupted after"):
        part = run(tallmc.sgld(0.01, size=3), draws=5000, callback=interrupt)
    n = part.positions.shape[1]
    assert 100 <= n < 5000
    np.testing.assert_array_equal(part.positions, whole.positions[:, :n])


def test_callback_hears_of_progress():
    heard = []
    run(tallmc.sgld(0.01, size=3), callback=heard.append)
    assert heard[-1].step == heard[-1].n_steps == 713
    assert heard[-1].draws == 700
    assert [p.step for p in heard] == sorted({p.step for p in heard})


def test_nothing_is_compiled_again_for_other_seeds_steps_draws_or_data():
    def compiled(posterior, **settings):
        before = _loop.advance._cached._cache_size()
        step = settings.pop("step_size", 0.01)
        tallmc.sample(posterior, tallmc.sgld_cv_ps(step, size=4), chains=2, **{"draws": 30} | settings)
        return _loop.advance._cached._cache_size() - before

    compiled(logistic(n_rows=40))
    assert compiled(logistic(n_rows=40), seed=5) == 0
    assert compiled(logistic(n_rows=40), step_size=0.02) == 0
    assert compiled(logistic(n_rows=40), draws=77, thin=3, burn_in=5) == 0
    assert compiled(logistic(n_rows=40, seed=9)) == 0


def test_a_pytree_of_parameters_comes_back_as_one():
    rng = np.random.default_rng(0)
    posterior = tallmc.Posterior(
        log_likelihood=lambda p, row: -0.5 * (row["y"] - p["slope"] @ row["x"] - p["intercept"]) ** 2,
        log_prior=lambda p: -0.5 * (p["intercept"] ** 2 + jnp.sum(p["slope"] ** 2)),
        data={"x": rng.normal(size=(50, 2)), "y": rng.normal(size=50)},
        init={"intercept": 0.0, "slope": np.zeros(2)},
    )
    draws = tallmc.sample(posterior, tallmc.sgld_cv(0.01, size=5), chains=2, draws=30)
    assert draws.params["intercept"].shape == (2, 30)
    assert draws.params["slope"].shape == (2, 30, 2)
    np.testing.assert_array_equal(draws.params["slope"], draws.positions[..., 1:])
