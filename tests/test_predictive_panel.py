"""The posterior predictive panel of the report, and the calibration curve."""

import numpy as np
import pytest
import scipy.stats as stats

import tallmc
from problems import laplace_draws, slow_after
from row_stores import stored_logistic
from tallmc.report.content import PredictiveCheck, predictive_check
from tallmc.report.page import write_report
from tallmc.report.plots import predictive_charts, quantile_levels, wilson_interval

RNG = np.random.default_rng(4)
X = np.c_[np.ones(500), RNG.normal(size=500)]
ETA = X @ [0.2, 0.9]
BUILD = {
    "binary": lambda: tallmc.models.logistic_regression(
        X, (RNG.random(500) < 1 / (1 + np.exp(-ETA))) * 1.0, 4.0
    ),
    "count": lambda: tallmc.models.poisson_regression(X, RNG.poisson(np.exp(ETA)), 4.0),
    "number": lambda: tallmc.models.linear_regression(X, ETA + RNG.normal(size=500), 4.0, 1.0),
    "class": lambda: tallmc.models.softmax_regression(X, RNG.integers(0, 3, size=500), 4.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_after(1, ["binary", "number"]))
@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
def test_the_report_checks_the_predictive_law(kind, tmp_path):
    posterior = BUILD[kind]()
    tallmc.sample(
        posterior, tallmc.methods.mala(0.004), chains=2, n_draws=50, store=tmp_path / "run"
    )
    write_report(tmp_path / "run", tmp_path / "with.html", posterior=posterior)
    write_report(tmp_path / "run", tmp_path / "without.html")
    page, plain = ((tmp_path / name).read_text() for name in ("with.html", "without.html"))
    assert "Posterior predictive check" in page and "Observed and simulated y" in page
    assert ("Calibration" in page) == (kind == "binary")
    assert "Posterior predictive check" not in plain


@pytest.mark.parametrize("kind", slow_after(1, ["number", "binary", "class", "count"]))
def test_the_check_compares_data_with_simulated_data(kind):
    posterior = BUILD[kind]()
    draws = laplace_draws(posterior)
    found = predictive_check(draws, posterior)
    assert found is not None and found.simulated.shape == (100, 500)
    np.testing.assert_array_equal(found.observed, np.asarray(posterior.data.y))
    if kind == "binary":
        expected = draws.predict(X).mean
        np.testing.assert_allclose(found.probability, expected, rtol=1e-10)
    else:
        assert found.probability is None
    assert found.classes == (("0", "1", "2") if kind == "class" else None)
    # The model is right: the mean of the data is like that of simulated data.
    means = found.simulated.mean(axis=1)
    assert abs(found.observed.mean() - means.mean()) < 4.6 * means.std()
    charts = predictive_charts(found)
    assert ("density" in charts[0]) == (kind == "number")
    assert len(charts) == (1 if kind == "class" else 2)


@pytest.mark.parametrize("kind", ["count", "number"])
def test_levels_of_responses_are_uniform_if_the_model_holds(kind):
    rng = np.random.default_rng(1)
    rates = np.exp(rng.normal(size=4000))
    if kind == "count":
        observed, simulated = rng.poisson(rates) * 1.0, rng.poisson(rates, (100, 4000)) * 1.0
    else:
        observed, simulated = rng.normal(rates), rng.normal(rates, size=(100, 4000))
    levels = quantile_levels(PredictiveCheck(observed, simulated, None, "y", None))
    assert levels.min() > 0 and levels.max() < 1
    distance = stats.kstest(levels, "uniform").statistic
    critical = 2.56 / np.sqrt(4000)  # exceeded as rarely as |z| > 4.6
    assert distance < critical
    overdispersed = np.minimum(rng.negative_binomial(1, 1 / (1 + rates)), 30.0)
    if kind == "count":
        check = PredictiveCheck(overdispersed, simulated, None, "y", None)
        assert stats.kstest(quantile_levels(check), "uniform").statistic > critical
        bars, residuals = predictive_charts(check)
        assert "root of the share" in bars and "Quantile residuals of y" in residuals


def test_intervals_of_shares_are_those_of_wilson():
    for successes, count in ((0, 12), (7, 20), (50, 50)):
        low, high = wilson_interval(np.array([successes / count]), np.array([count]))
        expected = stats.binomtest(successes, count).proportion_ci(0.9, method="wilson")
        assert low[0] == pytest.approx(expected.low, abs=1e-4)
        assert high[0] == pytest.approx(expected.high, abs=1e-4)


def test_names_of_responses_are_escaped_and_equal_responses_shown():
    equal = PredictiveCheck(np.full(9, 0.5), np.full((4, 9), 0.5), None, "<script>", None)
    charts = predictive_charts(equal)
    chart = charts[0]
    assert "<script>" not in "".join(charts) and "All responses are equal" in chart


def test_rows_on_disk_are_not_checked(tmp_path):
    on_disk, in_memory = stored_logistic(tmp_path / "rows")
    assert predictive_check(laplace_draws(in_memory), on_disk) is None
    assert predictive_charts(None) == []
