"""The verdict on draws: pairs measure the bias of any composition, and nothing is wrong in silence.

Pairs are compared with the exact laws at ε and ε/2. Runs that are wrong must be doubtful.
"""

import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import exact_posterior, linear, logistic, slow_after
from stationary import exact_law
from tallmc._core.statistics import agreement
from tallmc.dynamics import BAOAB, SGHMC, Hamiltonian, Langevin
from tallmc.methods.abstract import CHOSEN_BUDGET, Account, Bias
from tallmc.methods.pairs import PairRun
from tallmc.methods.suggestions import gradient_noise, inflation_rate
from tallmc.results.report import Verdict, make_report

# Splittings have a smaller bias at the same step size.
DYNAMICS = {
    "langevin": (Langevin(), 0.15),
    "underdamped": (SGHMC(friction=6.0), 0.15),
    "splitting": (BAOAB(friction=6.0), 0.5),
    "trajectories": (Hamiltonian(length=4, friction=3.0), 0.5),
}


def bound_with(dynamics, step, size=6):
    return (
        tallmc.Method(dynamics=dynamics, batch_size=size, step_size=step).prepare(linear()).kernel
    )


def twice_as_long(dynamics):
    """The dynamics with twice as many steps in a trajectory, if it has trajectories."""
    if not isinstance(dynamics, Hamiltonian):
        return dynamics
    return dataclasses.replace(dynamics, length=2 * dynamics.length)


@pytest.mark.parametrize("name", slow_after(1, DYNAMICS))
def test_pairs_measure_the_difference_of_the_exact_laws(name):
    dynamics, step = DYNAMICS[name]
    bound = bound_with(dynamics, step)
    start = jnp.broadcast_to(tallmc.anchor.find_anchor(linear()).position, (128, 2))
    # The law of trajectories is that of their ends.
    pairs = PairRun(bound, start, burn_in=200, n_draws=300, thin=getattr(dynamics, "length", 2))
    coarse, fine = (
        np.diag(exact_law(bound_with(finer, size), size).covariance)
        for finer, size in ((dynamics, step), (twice_as_long(dynamics), step / 2))
    )
    bias, expected = pairs.bias(), coarse / fine - 1
    assert expected.min() > 0.02, "the example must have a bias"
    assert np.abs((bias.sd - expected) / bias.sd_error).max() < 4.6
    assert np.all(bias.sd > 5 * bias.sd_error), "the pairs must be close enough to show the bias"
    for found, law in zip(pairs.positions(), (coarse, fine), strict=True):
        assert np.allclose(found.var(axis=(0, 1)), law, rtol=0.1), "each chain has its own law"


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_after(1, ["sgnht_cv", "svrg_ld", "saga_ld", "cyclical_sgld"]))
def test_methods_with_a_memory_or_a_schedule_are_measured_from_where_the_run_ended(name):
    posterior = linear(n_rows=200)
    suggested = tallmc.suggest(posterior, name, batch_size=20)
    draws = tallmc.sample(
        posterior, suggested.method, n_draws=1000, thin=suggested.thin, measure_bias=True
    )
    assert draws.account.bias is not None
    assert draws.report.trusted, str(draws.report)


@pytest.fixture(scope="module")
def posterior():
    return linear(n_rows=400)


@pytest.mark.slow
def test_a_step_too_large_is_doubtful_and_a_suggested_one_is_checked(posterior):
    suggested = tallmc.suggest(posterior, "sgld_cv", batch_size=40)
    good = tallmc.sample(posterior, suggested.method, thin=suggested.thin, measure_bias=True)
    assert good.report.verdict is Verdict.CHECKED, str(good.report)
    _, covariance = exact_posterior(posterior)
    error = np.abs(good.positions.std(axis=(0, 1)) / np.sqrt(np.diag(covariance)) - 1).max()
    assert error < 2 * good.report.sd_error < 0.4
    assert good.n_row_evals_check <= good.n_row_evals_sampling / 5
    assert good.n_row_evals_check > good.n_row_evals_sampling / 20, "pairs must have run"

    noisy = tallmc.methods.sgld(step_size=0.2 / 400, batch_size=4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bad = tallmc.sample(posterior, noisy, thin=20, measure_bias=True)
    assert bad.report.verdict is Verdict.DOUBTFUL
    assert "shift posterior means" in bad.report.doubts[0]
    said = [str(w.message) for w in caught if w.category is tallmc.SamplingWarning]
    assert said == [*bad.report.doubts, *bad.report.notes], (
        "warnings and doubts come from one place"
    )


def test_what_was_not_measured_is_not_trusted(posterior):
    method = tallmc.methods.sgld_cv(step_size=2e-4, batch_size=40)
    unchecked = tallmc.sample(posterior, method, n_draws=1000, thin=20)
    assert unchecked.report.verdict is Verdict.NOT_CHECKED and not unchecked.report.trusted
    assert unchecked.report.mean_error is None
    assert "Use sample(..., measure_bias=True) or tallmc.check" in str(unchecked.report)
    assert "verdict: not checked" in str(unchecked.report)


def test_an_accept_step_leaves_nothing_to_check(posterior):
    draws = tallmc.sample(posterior, tallmc.methods.mala(2e-3), n_draws=1000, measure_bias=True)
    assert draws.account.exact and draws.account.bias is None and draws.n_row_evals_check == 0
    assert draws.report.verdict is Verdict.CHECKED, str(draws.report)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    slow_after(1, [("ewsg", "exponential weights"), ("psgld", "preconditioner")]),
)
def test_a_bias_that_pairs_cannot_see_is_named(name, said):
    posterior = linear(n_rows=50)
    suggested = tallmc.suggest(posterior, name, batch_size=25)
    draws = tallmc.sample(
        posterior, suggested.method, n_draws=1000, thin=suggested.thin, measure_bias=True
    )
    assert draws.account.bias is not None
    assert said in draws.report.unknown
    assert draws.report.verdict is not Verdict.CHECKED


def test_a_run_too_short_to_check_says_how_long_it_must_be(posterior):
    method = tallmc.methods.sgld_cv(step_size=2e-4, batch_size=40)
    draws = tallmc.sample(posterior, method, n_draws=40, thin=20, measure_bias=True)
    assert draws.account.bias is None
    assert "Run" in draws.report.unknown
    assert draws.report.verdict is Verdict.DOUBTFUL


@pytest.mark.slow
def test_a_stored_run_keeps_its_verdict(posterior, tmp_path):
    method = tallmc.methods.sgld_cv(step_size=5e-4, batch_size=40)
    draws = tallmc.sample(
        posterior, method, n_draws=800, thin=10, measure_bias=True, store=tmp_path / "run"
    )
    loaded = tallmc.load(tmp_path / "run")
    assert draws.account.bias is not None
    assert str(loaded.report) == str(draws.report)
    np.testing.assert_array_equal(loaded.account.bias.sd, draws.account.bias.sd)
    assert loaded.n_row_evals == draws.n_row_evals
    longer = tallmc.resume(tmp_path / "run", posterior, n_draws=1000)
    assert longer.account.bias is not None, "a resumed run is checked again"
    assert not np.array_equal(longer.account.bias.sd, draws.account.bias.sd)


def test_check_returns_the_health_and_does_not_warn(posterior):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = tallmc.check(posterior, tallmc.methods.sgld(step_size=5e-4, batch_size=4), thin=20)
    assert report.verdict is Verdict.DOUBTFUL


def account_with(**changes):
    zero, small = np.zeros(3), np.full(3, 0.01)
    bias = Bias(zero, small, zero, small)._replace(**changes)
    return Account(None, CHOSEN_BUDGET, bias=bias)


def verdict_of(account):
    positions = np.random.default_rng(0).normal(size=(4, 500, 3))
    return make_report(positions, np.ones(4, bool), {}, account).verdict


def test_the_verdict_compares_the_bias_with_its_budget_and_its_error():
    assert verdict_of(account_with()) is Verdict.CHECKED
    assert verdict_of(account_with(mean=np.array([0, 0.2, 0]))) is Verdict.DOUBTFUL
    assert verdict_of(account_with(sd=np.array([0, 0, -0.1]))) is Verdict.DOUBTFUL
    within = account_with(mean=np.full(3, 0.09), sd=np.full(3, 0.04))
    assert verdict_of(within) is Verdict.CHECKED
    vague = account_with(sd_error=np.full(3, 0.06))
    assert verdict_of(vague) is Verdict.NOT_CHECKED
    assert verdict_of(Account(None)) is Verdict.NOT_CHECKED
    assert verdict_of(Account(None, exact=True)) is Verdict.CHECKED
    assert verdict_of(account_with().doubting("reason")) is Verdict.DOUBTFUL


def autocorrelated(rng, chains, draws, dim, rho):
    noise = rng.normal(size=(draws, chains, dim))
    values = np.empty_like(noise)
    values[0] = noise[0]
    for t in range(1, draws):
        values[t] = rho * values[t - 1] + np.sqrt(1 - rho**2) * noise[t]
    return values.swapaxes(0, 1)


@pytest.mark.parametrize(
    ("chains", "draws", "dim", "rho"),
    slow_after(2, [(8, 1000, 1, 0.8), (256, 40, 5, 0.5), (8, 1000, 40, 0.8)]),
)
def test_chains_in_equilibrium_agree(chains, draws, dim, rho):
    """One run in a hundred may give an alarm; more than 2 of 12 have a probability of 2e-4."""
    rng = np.random.default_rng(0)
    runs = [agreement(autocorrelated(rng, chains, draws, dim, rho)) for _ in range(12)]
    assert sum(not run.reached for run in runs) <= 2
    assert np.mean([run.rhat for run in runs]) > 1.001


def test_1500_parameters_are_not_refused_for_what_chance_gives():
    positions = np.random.default_rng(0).normal(size=(8, 100, 1500)).astype(np.float32)
    found = agreement(positions)
    assert found.rhat > 1.01 and found.reached
    assert len(found.parameters) < 1500
    shifted = positions.copy()
    shifted[0, :, 700] += 2.0
    assert not agreement(shifted).reached, "a single parameter that disagrees is found"


def test_a_single_chain_that_drifts_does_not_agree_with_itself():
    steady = autocorrelated(np.random.default_rng(0), 1, 2000, 2, 0.3)
    assert agreement(steady).reached
    drifting = steady + np.linspace(0, 2, 2000)[:, None]
    assert not agreement(drifting).reached


def test_many_short_chains_that_have_not_forgotten_their_starts_disagree():
    rng = np.random.default_rng(0)
    starts = np.arange(256) % 16
    slow = autocorrelated(rng, 256, 40, 2, 0.5) + 0.5 * rng.normal(size=(16, 1, 2))[starts]
    assert not agreement(slow).reached


def test_predicted_inflation_is_that_of_the_exact_law():
    posterior, step = linear(), 1e-3
    method = tallmc.methods.sgld(step, 3)
    bound = method.prepare(posterior).kernel
    _, covariance = exact_posterior(posterior)
    law = exact_law(bound, step)
    without_noise = exact_law(tallmc.methods.ula(step).prepare(posterior).kernel, step)
    exact = np.max(np.diag(law.covariance - without_noise.covariance) / np.diag(covariance))
    noise, n_row_evals = gradient_noise(bound, tallmc.anchor.find_anchor(posterior))
    found = step * inflation_rate(np.linalg.inv(covariance), noise, None)
    assert found == pytest.approx(exact, rel=0.15)
    assert n_row_evals == 8 * 64 * 3


@pytest.mark.parametrize("name", slow_after(2, ["sgld", "sghmc", "sgrld", "sg_baoab", "psgld"]))
def test_the_suggested_step_uses_the_budget_and_no_more(name):
    posterior = logistic(n_rows=20_000, dim=3)
    suggested = tallmc.suggest(posterior, name, batch_size=10)
    assert suggested.inflation == pytest.approx(0.1, rel=1e-6)
    assert suggested.rule == "the gradient noise that the error budget allows"
    stricter = tallmc.suggest(
        posterior, name, batch_size=10, inflation=0.05, anchor=suggested.anchor
    )
    assert stricter.step_size == pytest.approx(suggested.step_size / 2, rel=1e-3)


def test_a_given_step_size_is_kept_and_its_inflation_predicted():
    posterior = logistic(n_rows=20_000, dim=3)
    suggested = tallmc.suggest(posterior, "sghmc", batch_size=10)
    given = tallmc.suggest(posterior, "sghmc", batch_size=10, step_size=3 * suggested.step_size)
    assert given.step_size == given.method.step_size == 3 * suggested.step_size
    assert given.inflation == pytest.approx(0.3, rel=1e-6) and given.rule is None


@pytest.mark.slow
def test_a_method_that_is_too_slow_here_says_so():
    posterior = logistic(n_rows=20_000, dim=3)
    (warning,) = tallmc.suggest(posterior, "sgld", batch_size=10).warnings
    assert "sgld is slow here" in warning and "control variates" in warning
    assert tallmc.suggest(posterior, "sgld_cv_ps", batch_size=100).warnings == ()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("sgdl", {}, "name must be one of"),
        ("ula", {"batch_size": 5}, "size must be left out with ula, which uses every row"),
        ("sgld", {"batch_size": 0}, "size must be an int in"),
        ("sgld", {"inflation": 0.0}, "inflation must"),
    ],
)
def test_suggest_refuses_what_does_not_fit(name, options, said):
    with pytest.raises(tallmc.InvalidInput, match=said):
        tallmc.suggest(linear(), name, **options)
