"""`sample(posterior)` without settings agrees with references and reports its error and doubts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
import tallmc.methods.automatic.hard_rows as hard_rows
import tallmc.methods.automatic.method as automatic
from problems import by_control_variates, exact_posterior, linear, logistic, slow_after
from tallmc import Automatic, InvalidInput
from tallmc.methods.abstract import ErrorBudget
from tallmc.methods.trajectories import SurrogateHMC


@functools.cache
def regression(n_rows=20_000, dim=5, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_rows, dim))
    y = rng.random(n_rows) < 1 / (1 + np.exp(-x @ rng.normal(size=dim)))
    return tallmc.models.logistic_regression(x, y, prior_variance=10.0)


@pytest.fixture(scope="module")
def drawn():
    """Draws by control variates."""
    with pytest.MonkeyPatch.context() as patched:
        by_control_variates(patched)
        return tallmc.sample(regression(), seed=1, anchor=anchor_of(regression))


@pytest.fixture(scope="module")
def drawn_by_series():
    return tallmc.sample(regression(), seed=1, anchor=anchor_of(regression))


@pytest.fixture(scope="module")
def drawn_exactly():
    return tallmc.sample(regression(), exact=True, seed=1, anchor=anchor_of(regression))


@functools.cache
def anchor_of(build):
    return tallmc.anchor.find_anchor(build())


def nearly_exact(posterior, anchor, n_draws=4000):
    """Mean and sd by importance sampling from the Laplace approximation.

    The approximation is close because there are many rows.
    """
    noise = np.random.default_rng(0).normal(size=(n_draws, posterior.dim))
    draws = np.asarray(anchor.position) + noise @ np.asarray(anchor.factor).T
    potentials = np.asarray(jax.lax.map(posterior.potential, jnp.asarray(draws), batch_size=200))
    log_weights = -potentials + 0.5 * (noise**2).sum(axis=1)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    mean = weights @ draws
    return mean, np.sqrt(weights @ (draws - mean) ** 2)


@pytest.fixture(scope="module")
def truth():
    return nearly_exact(regression(), anchor_of(regression))


@pytest.mark.parametrize("kind", slow_after(2, ["drawn_by_series", "drawn_exactly", "drawn"]))
def test_the_default_is_right_within_the_error_it_reports(kind, truth, request):
    drawn = request.getfixturevalue(kind)
    mean, sd = truth
    found = drawn.positions[drawn.ok]
    mean_error = np.abs(found.mean(axis=(0, 1)) - mean) / sd
    sd_error = np.abs(found.std(axis=(0, 1)) / sd - 1)
    report = drawn.report
    assert report.ess >= 1000 and report.trusted, str(report)
    assert mean_error.max() < report.mean_error + 4.6 / np.sqrt(4000)
    assert sd_error.max() < report.sd_error + 4.6 / np.sqrt(2 * 4000)
    assert report.mean_error < 0.2 and report.sd_error < 0.15


@pytest.mark.slow
def test_it_says_what_it_chose_and_why(drawn):
    method = drawn.settings["method"]
    assert isinstance(method, tallmc.Method)
    assert method.gradient == tallmc.gradient.ControlVariate(2)
    said = str(drawn.report)
    assert "control variates of order 2" in said
    assert f"{method.batch_size.size} rows per step" in said
    assert "Leimkuhler–Matthews steps" in said
    assert said.endswith("verdict: checked; nothing speaks against these draws")
    assert drawn.report.inflation < 0.01


def test_the_draws_of_the_default_are_checked_on_all_rows(drawn_by_series):
    draws = drawn_by_series
    method, said = draws.settings["method"], str(draws.report)
    assert isinstance(method, SurrogateHMC) and not method.delayed
    assert "hard rows of 20,000, the others by their series of order 3" in said
    assert "checked on all rows at 256 draws: the log density is off by" in said
    assert said.endswith("verdict: checked; nothing speaks against these draws")
    assert not draws.account.exact and draws.n_row_evals_check == 20_000
    assert draws.n_row_evals_sampling == 0, "no row is hard"
    assert (np.abs(draws.account.bias.mean) < 0.01).all()


def test_exact_draws_on_request(drawn_exactly):
    draws = drawn_exactly
    assert draws.settings["method"].delayed and draws.account.exact and draws.report.trusted
    assert "accepted on all rows: the draws are exact" in str(draws.report)
    assert draws.sample_stats["delayed_acceptance_rate"].mean() > 0.99
    assert (
        draws.n_row_evals_sampling >= 20_000 * draws.positions.shape[0] * draws.positions.shape[1]
    )


@functools.cache
def heavy_tails():
    """Two rare categories: a coefficient has a long tail to one side."""
    rng = np.random.default_rng(0)
    x = np.c_[np.ones(6000), np.zeros(6000), rng.normal(size=6000)]
    x[:12, 1] = 1
    y = (rng.random(6000) < 0.5).astype(float)
    y[:12] = 1
    return tallmc.models.logistic_regression(x, y, prior_variance=100.0)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True])
def test_a_long_tail_is_carried_by_its_hard_rows(exact):
    draws = tallmc.sample(heavy_tails(), exact=exact, seed=1)
    assert draws.report.trusted, str(draws.report)
    assert draws.settings["method"].hard_rows >= 12
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(automatic, "FEW_ROWS", 10_000)
        truth = tallmc.sample(heavy_tails(), ess=10_000, seed=2)
    found, wanted = (each.positions.reshape(-1, 3) for each in (draws, truth))
    off = np.abs(found.mean(axis=0) - wanted.mean(axis=0)) / wanted.std(axis=0)
    assert off.max() < draws.report.mean_error + 4.6 / np.sqrt(10_000)


def product_of_two(n_rows):
    """A curved ridge: the rows determine the product of the parameters only."""
    data = 1 + 0.1 * np.random.default_rng(0).normal(size=n_rows)
    return tallmc.Posterior(
        log_likelihood=lambda params, x: -50 * (x - params["a"] * params["b"]) ** 2,
        log_prior=lambda params: -(params["a"] ** 2 + params["b"] ** 2) / 2,
        data=data,
        init={"a": 1.0, "b": 1.0},
    )


@pytest.mark.slow
def test_a_curved_ridge_is_no_series_and_no_chain_runs(monkeypatch):
    monkeypatch.setattr(hard_rows, "_AUTODIFF_COST", 1)
    posterior = product_of_two(20_000)
    anchor = tallmc.anchor.find_anchor(posterior)
    planner = automatic.SurrogatePlanner(posterior, anchor, ErrorBudget(), exact=False, seed=0)
    assert planner.plan() is None
    assert "a series of the rows is off by" in planner.why_not
    assert planner.n_row_evals <= 3 * 20_000


def test_hard_rows_without_closed_forms_count_as_several(monkeypatch):
    """Where their remainders cost as much as all rows, there is no series to compile."""
    posterior = product_of_two(6_000)
    anchor = tallmc.anchor.find_anchor(posterior)
    sizes = hard_rows.RowSizes(np.arange(6_000), np.ones(6_000), np.ones(6_000), 1, 0.0)
    monkeypatch.setattr(hard_rows.RowSizes, "of", lambda *_: sizes)
    monkeypatch.setattr(hard_rows, "enough_hard_rows", lambda _: hard_rows.HARD_ROWS.index(2048))
    monkeypatch.setattr(hard_rows, "make_surrogate", None)
    planner = automatic.SurrogatePlanner(posterior, anchor, ErrorBudget(), exact=False, seed=0)
    assert planner.plan() is None
    assert "too few of the rows" in planner.why_not


def test_chains_that_leave_the_region_of_the_series_end_in_another_plan(monkeypatch):
    """Where they end, derivatives of the rows may not be finite: no reason to crash."""
    posterior = linear(n_rows=50)
    anchor = tallmc.anchor.find_anchor(posterior)
    at_anchor = hard_rows.Expansion.at_anchor

    def far_away(posterior, anchor):
        found = at_anchor(posterior, anchor)
        return found._replace(hessian=np.full_like(found.hessian, np.nan))

    monkeypatch.setattr(hard_rows.Expansion, "at_anchor", far_away)
    planner = automatic.SurrogatePlanner(posterior, anchor, ErrorBudget(), exact=False, seed=0)
    assert planner.plan() is None
    assert "not finite where the chains went" in planner.why_not


def test_an_approximate_method_is_refused_with_exact():
    with pytest.raises(InvalidInput, match="be an exact method with exact=True"):
        tallmc.sample(linear(), tallmc.methods.sgld(0.1, batch_size=2), exact=True)
    assert tallmc.sample(linear(), tallmc.methods.mala(0.1), exact=True, n_draws=5).account.exact


@pytest.mark.slow
def test_far_fewer_rows_than_there_are_make_a_step(drawn):
    assert np.mean(drawn.sample_stats["batch_size"]) < 0.05 * 20_000
    assert drawn.n_row_evals_preparation > 64 * 20_000  # pilot runs and weights are counted


@pytest.mark.slow
def test_the_same_seed_gives_the_same_draws():
    """test_pair.py checks the same property for an anchored plan."""
    first, second = (tallmc.sample(linear(n_rows=50), n_draws=20, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first.positions, second.positions)


@pytest.mark.parametrize("double", slow_after(0, [True, False]))
def test_a_posterior_without_noise_is_no_trouble(double, monkeypatch):
    """On a linear regression, order-2 control variates leave a noise of rounding errors or zero."""
    by_control_variates(monkeypatch)
    with jax.enable_x64(double):
        posterior = linear(n_rows=6000)
        draws = tallmc.sample(posterior)
    mean, covariance = exact_posterior(posterior)
    sd = np.sqrt(np.diag(covariance))
    assert draws.report.trusted, str(draws.report)
    assert draws.settings["method"].batch_size.size == 64
    assert (np.abs(draws.positions.mean(axis=(0, 1)) - mean) / sd).max() < draws.report.mean_error
    assert np.abs(draws.positions.std(axis=(0, 1)) / sd - 1).max() < draws.report.sd_error


def test_few_rows_are_all_looked_at_by_an_exact_sampler():
    posterior = linear(n_rows=50)
    draws = tallmc.sample(posterior, ess=4000)
    assert draws.report.reasons[0] == "50 rows are few: every step uses all of them"
    assert isinstance(draws.settings["method"].dynamics, tallmc.dynamics.HMC)
    mean, covariance = exact_posterior(posterior)
    sd = np.sqrt(np.diag(covariance))
    found = draws.positions
    assert (np.abs(found.mean(axis=(0, 1)) - mean) / sd).max() < draws.report.mean_error < 0.08
    assert np.abs(found.std(axis=(0, 1)) / sd - 1).max() < draws.report.sd_error
    acceptance = draws.sample_stats["acceptance_rate"].mean()
    assert 0.7 < acceptance < 0.95


@pytest.mark.slow
def test_noise_that_asks_for_most_rows_gets_all_of_them(monkeypatch):
    by_control_variates(monkeypatch)
    monkeypatch.setattr(automatic, "FEW_ROWS", 10)
    posterior = logistic(n_rows=150, dim=2)
    draws = tallmc.sample(posterior, Automatic(inflation=1e-9), n_draws=50)
    assert draws.report.reasons[0] == (
        "gradient noise would require all the rows in a step: every step uses all rows"
    )
    assert isinstance(draws.settings["method"].dynamics, tallmc.dynamics.HMC)


@pytest.mark.slow
def test_with_too_many_parameters_each_has_its_own_scale(monkeypatch):
    monkeypatch.setattr(automatic, "MOST_DENSE", 3)
    posterior = regression(n_rows=6000, dim=4)
    draws = tallmc.sample(posterior, ess=1000)
    method = draws.settings["method"]
    assert method.gradient == tallmc.gradient.ControlVariate(1)
    assert isinstance(method.geometry, tallmc.geometry.Diagonal)
    assert "parameters are too many for their covariance" in draws.report.reasons[0]
    mean, sd = nearly_exact(posterior, tallmc.anchor.find_anchor(posterior))
    assert (
        np.abs(draws.positions.mean(axis=(0, 1)) - mean) / sd
    ).max() < draws.report.mean_error + 4.6 / np.sqrt(4000)
    assert np.abs(
        draws.positions.std(axis=(0, 1)) / sd - 1
    ).max() < draws.report.sd_error + 4.6 / np.sqrt(2 * 4000)


def double_well(n_rows):
    """Two modes. The start is between them, where the Hessian is not positive definite."""
    data = np.random.default_rng(0).normal(size=n_rows)
    return tallmc.Posterior(
        log_likelihood=lambda params, row: -((params["x"] ** 2 - 1) ** 2) / n_rows - 0.0 * row,
        log_prior=lambda params: 0.0 * params["x"],
        data=data,
        init={"x": 0.0},
    )


@pytest.mark.slow
def test_without_a_gaussian_all_rows_are_used(monkeypatch):
    monkeypatch.setattr(automatic, "FEW_ROWS", 10)
    draws = tallmc.sample(double_well(60), ess=150)
    assert draws.ok.all() and draws.account.exact
    left = (draws.positions < 0).mean()
    assert abs(left - 0.5) < 4.6 * np.sqrt(0.25 / draws.report.ess)


@pytest.mark.slow
def test_without_a_gaussian_and_with_too_many_rows_the_user_is_told(monkeypatch):
    monkeypatch.setattr(automatic, "_MOST_NUMBERS", 0)
    monkeypatch.setattr(automatic, "FEW_ROWS", 10)
    posterior = tallmc.Posterior(
        log_likelihood=lambda params, row: -(params["x"] ** 4) / 600 - 0.01 * row * params["x"],
        log_prior=lambda params: 0.0 * params["x"],
        data=np.resize([1.0, -1.0], 600),  # the Hessian at the mode is zero
        init={"x": 0.0},
    )
    draws = tallmc.sample(posterior, n_draws=100)
    assert draws.ok.all() and np.ptp(draws.positions) > 1
    assert not draws.report.trusted
    assert "no Gaussian around the mode" in draws.report.reasons[0]
    assert draws.settings["method"].dynamics == tallmc.dynamics.NoseHoover(friction=2.0)
    assert any(
        "neither the noise nor the step has been checked" in doubt for doubt in draws.report.doubts
    )


@pytest.mark.slow
def test_scales_and_the_largest_curvature_are_those_of_the_model():
    posterior = linear(n_rows=500, dim=3)
    anchor = tallmc.anchor.find_anchor(posterior)
    x, y = np.asarray(posterior.data.x), np.asarray(posterior.data.y)
    gradients = x * ((x @ np.asarray(anchor.position) - y) / 1.5)[:, None]
    scale = automatic.fisher_scales(posterior, anchor.position)
    np.testing.assert_allclose(scale, 1 / np.sqrt((gradients**2).sum(axis=0) + 1 / 4.0), rtol=1e-10)
    matrix = np.asarray(anchor.hessian) * np.outer(scale, scale)
    found = automatic.largest_curvature(posterior, anchor.position, scale)
    largest = np.linalg.eigvalsh(matrix)[-1]
    assert 0.9 * largest < found <= largest * (1 + 1e-9)  # power iteration converges from below


def test_a_run_goes_on_until_every_parameter_has_its_effective_draws():
    posterior = linear(n_rows=50)
    draws = tallmc.sample(posterior, tallmc.methods.ula(0.01), ess=300, chains=2, burn_in=100)
    assert draws.report.ess >= 300
    assert draws.positions.shape[1] > 200  # more draws than the first check of the goal


def test_a_limit_ends_a_run_and_is_a_reason_for_doubt():
    draws = tallmc.sample(linear(n_rows=50), ess=1e6, burn_in=0, max_rows=20_000)
    assert 0 < draws.positions.shape[1] < 10_000
    assert any("the limit of 20,000 rows ended the run" in doubt for doubt in draws.report.doubts)
    assert not draws.report.trusted


def test_the_health_of_a_method_of_your_own_knows_no_bias():
    draws = tallmc.sample(linear(n_rows=50), tallmc.methods.ula(0.02), n_draws=2000)
    assert draws.report.mean_error is None and draws.report.reasons == ()
    assert not draws.report.trusted


@pytest.mark.slow
def test_health_doubts_what_the_run_itself_has_shown(drawn):
    def doubts(**changes):
        return " ".join(
            dataclasses.replace(
                drawn, account=dataclasses.replace(drawn.account, **changes)
            ).report.doubts
        )

    d = drawn.positions.shape[2]
    assert doubts() == ""
    assert "inflated a variance by 50.0%" in doubts(inflation=np.full(d, 0.5))
    biased = drawn.account.bias._replace(mean=np.full(d, 0.3), mean_error=np.full(d, 0.01))
    assert "shift posterior means by 0.3 sd" in doubts(bias=biased)
    assert doubts(noise_tail=1.2, inflation=np.full(d, 1e-5)) == "", (
        "a hundred times the noise would still be within its budget"
    )
    assert "heavy tail (k = 1.20)" in doubts(noise_tail=1.2, inflation=np.full(d, 0.005))


def test_bad_requests_are_refused():
    posterior = linear()
    with pytest.raises(
        InvalidInput,
        match=r"ess must be left out when n_draws is given; got 100\. Give one of the two\.",
    ):
        tallmc.sample(posterior, n_draws=10, ess=100)
    with pytest.raises(InvalidInput, match="inflation must be a finite number"):
        Automatic(inflation=0)
    with pytest.raises(InvalidInput, match="max_rows must be an int of at least 1"):
        tallmc.sample(posterior, max_rows=0)
