"""Survival times: `surv(…)` in formulas, the modes of lifelines, curves, units and refusals."""

import functools
import importlib

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import slow_after
from row_stores import write_store
from tallmc._fit.fit import regression_problem
from tallmc._fit.model import RegressionModel


@functools.cache
def table():
    """Times of a Weibull law, censored, truncated and rounded to intervals."""
    rng = np.random.default_rng(0)
    n = 400
    x, g = rng.normal(size=n), rng.integers(0, 2, n)
    time = np.exp(1.0 - 0.4 * x + 0.5 * g) * rng.weibull(1.5, n)
    end = rng.uniform(1, 8, n)
    found = {"x": x, "g": g.astype(float), "time": np.minimum(time, end)}
    found["died"] = (time <= end).astype(float)
    found["start"] = np.where(np.arange(n) % 2 == 1, 0.2 * found["time"], 0.0)
    found["lower"] = np.where(found["died"] == 1, np.floor(found["time"]), found["time"])
    found["upper"] = np.where(found["died"] == 1, np.ceil(found["time"]), np.inf)
    return found


def problem(formula, family, data=None, **options):
    model = RegressionModel(family=family, formula=formula, **options)
    return regression_problem(table() if data is None else data, model)


PLAIN, ENTRY = "surv(time, died) ~ x + g", "surv(start, time, died) ~ x + g"
INTERVAL = 'surv(lower, upper, type="interval") ~ x + g'

# Intercept, x, g and log σ (−rho_, sigma_ or −beta_) of this table by `WeibullAFTFitter`,
# `LogNormalAFTFitter` and `LogLogisticAFTFitter` of lifelines 0.30.3.
JUDGED = {
    "weibull entry": (0.991208, -0.412887, 0.423838, -0.331999),
    "weibull plain": (1.029862, -0.394809, 0.415764, -0.422829),
    "weibull interval": (1.040673, -0.385516, 0.404642, -0.453430),
    "lognormal entry": (0.671703, -0.475949, 0.369807, 0.075626),
    "lognormal plain": (0.748013, -0.438747, 0.373420, 0.010782),
    "loglogistic entry": (0.698114, -0.433363, 0.454563, -0.593806),
    "loglogistic plain": (0.745820, -0.410839, 0.447066, -0.664744),
}


FAST = ("weibull interval", "loglogistic entry")


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in JUDGED],
)
def test_modes_are_the_maximum_likelihood_of_lifelines(case):
    """A Newton step from their estimate is nothing next to its standard error."""
    family, kind = case.split()
    formula = {"plain": PLAIN, "entry": ENTRY, "interval": INTERVAL}[kind]
    found = problem(formula, family, standardise=False, prior={"": "normal(1000)"})
    position = jnp.asarray(JUDGED[case])
    posterior = found.posterior

    @run_once
    def derivatives(position):
        return posterior.gradient(position), posterior.hessian(position)

    gradient, hessian = map(np.asarray, derivatives(position))
    covariance = np.linalg.inv(hessian)
    step, sd = covariance @ gradient, np.sqrt(np.diagonal(covariance))
    # log σ has a prior with sd 3, and lifelines stops at 1e-5.
    assert np.abs(step / sd).max() < 0.01


@pytest.mark.slow
def test_draws_of_the_recidivism_data_are_near_the_estimates_of_lifelines():
    lifelines = pytest.importorskip("lifelines")
    frame = importlib.import_module("lifelines.datasets").load_rossi()
    fitted = lifelines.WeibullAFTFitter().fit(frame, "week", "arrest").summary
    draws = tallmc.fit("surv(week, arrest)", frame, family="weibull", seed=0)
    assert draws.report.trusted
    for name in ("Intercept", "fin", "age", "race", "wexp", "mar", "paro", "prio"):
        of = fitted.loc[("lambda_", name)]
        # With 114 events the posterior is wider than normal, and skewed.
        assert abs(draws.values[name].mean() - of["coef"]) < 0.3 * of["se(coef)"]
        assert 0.9 < draws.values[name].std() / of["se(coef)"] < 1.25


def survival_of(family, draws, x, g, times):
    """Curves and means of log T from the quantities of draws, by NumPy."""
    values = {name: np.asarray(of).reshape(-1, *of.shape[2:]) for name, of in draws.values.items()}
    z = values["x"] * x + values["g"] * g
    if family == "piecewise_exponential":
        starts, ends = np.array([0.0, 1.0, 2.5]), np.array([1.0, 2.5, np.inf])
        exposure = np.clip(times[:, None] - starts, 0, ends - starts)
        return np.exp(-np.exp(z)[:, None] * (values["hazard"] @ exposure.T))
    w = (np.log(times) - (z + values["Intercept"])[:, None]) / values["sigma"][:, None]
    return np.exp(-np.exp(w))


@pytest.mark.parametrize("family", slow_after(1, ["weibull", "piecewise_exponential"]))
def test_curves_are_those_of_the_coefficients_in_the_units_of_the_table(family, tmp_path):
    breaks = [1.0, 2.5] if family == "piecewise_exponential" else None
    method, times = tallmc.methods.mala(1e-3), np.array([0.5, 1.0, 2.0, 6.0])
    draws = tallmc.fit(
        *(ENTRY, table()), family=family, breaks=breaks, method=method, chains=1, n_draws=40
    )
    draws.save(tmp_path / "draws.nc")
    rows = {"x": np.array([0.3, -1.0]), "g": np.array([1.0, 0.0])}
    for known in (draws, tallmc.load(tmp_path / "draws.nc")):
        found = known.survival(rows, times, interval=0.8)
        for k in range(2):
            curves = survival_of(family, draws, rows["x"][k], rows["g"][k], times)
            np.testing.assert_allclose(found.mean[k], curves.mean(axis=0), rtol=2e-5)
            np.testing.assert_allclose(found.low[k], np.quantile(curves, 0.1, axis=0), rtol=2e-5)
    assert found.columns().keys() >= {"mean[0.5]", "low[6]", "high[2]"}
    halves = known.survival(rows, known.predict(rows, kind="median", n_draws=1).mean, n_draws=1)
    np.testing.assert_allclose(np.diagonal(halves.mean), 0.5, rtol=1e-5)


def test_a_row_store_has_the_rows_of_the_table(tmp_path):
    columns = table()
    x = np.column_stack([np.ones(400), columns["x"], columns["died"]])
    rows = tallmc.rows.open(write_store(tmp_path / "rows", x, columns["time"], shard_rows=64))
    options = {"standardise": False, "prior": {"": "normal(2)"}}
    stored = problem("surv(y, x2) ~ x1", "weibull", rows, **options)
    given = {"y": columns["time"], "x1": columns["x"], "x2": columns["died"]}
    in_memory = problem("surv(y, x2) ~ x1", "weibull", given, **options)
    position = jnp.asarray([0.8, -0.3, -0.2], jnp.float32)
    found, expected = (each.posterior.gradient(position) for each in (stored, in_memory))
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-3)
    with pytest.raises(tallmc.InvalidInput, match=r"breaks.* must be given with a row store"):
        problem("surv(y, x2) ~ x1", "piecewise_exponential", rows)


@pytest.mark.parametrize("form", ["entry", "interval"])
def test_truncated_times_and_intervals_of_a_row_store_are_those_of_the_table(tmp_path, form):
    columns = table()
    time = columns["time"]
    begin = np.where(np.arange(400) % 3, 0.4 * time, 0.0)
    late = begin if form == "entry" else time
    early = time if form == "entry" else begin
    formula = "surv(x3, y, x2) ~ x1" if form == "entry" else 'surv(y, x3, type="interval") ~ x1'
    x = np.column_stack([np.ones(400), columns["x"], columns["died"], late])
    rows = tallmc.rows.open(write_store(tmp_path / "rows", x, early, shard_rows=64))
    options = {"standardise": False, "prior": {"": "normal(2)"}}
    given = {"y": early} | {f"x{k}": x[:, k] for k in (1, 2, 3)}
    position = jnp.asarray([0.8, -0.3, -0.2], jnp.float32)
    found, expected = (
        problem(formula, "weibull", source, **options).posterior.gradient(position)
        for source in (rows, given)
    )
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-3)
    x[77, 3] = time[77] * 2 if form == "entry" else -1.0
    bad = tallmc.rows.open(write_store(tmp_path / "bad", x, early, shard_rows=64))
    rule = "be before 'y'" if form == "entry" else "be at least 'y'"
    with pytest.raises(tallmc.InvalidInput, match=f"'x3' must {rule}.* 77"):
        problem(formula, "weibull", bad, **options)
    every = problem(formula.replace("~ x1", "~ ."), "weibull", rows, **options)
    assert not {"x3", "y"} & set(every.form.columns.names)


REFUSED = {
    "negative time": ({"time": -1.0}, PLAIN, "weibull", "'time' must be positive; got -1 in row 2"),
    "late start": ({"start": 99.0}, ENTRY, "weibull", "'start' must be before 'time'; got 99"),
    "other event": ({"died": 2.0}, PLAIN, "weibull", "'died' must be 1 for an event and 0"),
    "no events": ({"died": "all 0"}, PLAIN, "weibull", "'time' must have events; got 'none'"),
    "order": ({"upper": 0.0}, INTERVAL, "weibull", "'upper' must be at least 'lower'"),
    "family": ({}, PLAIN, "gaussian", r"be one of exponential, .* for surv\(…\); got 'gaussian'"),
    "parts": (
        {},
        "surv(time, died, x, g) ~ 1",
        "weibull",
        r"have surv\(time, event\), surv\(start",
    ),
    "type": ({}, 'surv(lower, upper, type="left") ~ 1', "weibull", r"type=\"interval\"\) of colum"),
    "no column": ({}, "surv(time, dead) ~ x", "weibull", "name a column of dict; got 'dead'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_times_are_refused(case):
    changed, formula, family, message = REFUSED[case]
    columns = {name: np.array(values) for name, values in table().items()}
    for name, value in changed.items():
        columns[name][slice(None) if value == "all 0" else 1] = 0 if value == "all 0" else value
    with pytest.raises(tallmc.InvalidInput, match=message):
        problem(formula, family, columns)


def test_intervals_must_be_increasing_and_belong_to_piecewise_hazards():
    for family, breaks in (("weibull", (1.0,)), ("piecewise_exponential", (2.0, 1.0))):
        with pytest.raises(tallmc.InvalidInput, match="be increasing positive times"):
            problem(PLAIN, family, breaks=breaks)


def test_frailties_are_parameters_however_many_groups_there_are():
    columns = table() | {"h": np.array([f"h{k}" for k in np.arange(400) % 130])}
    posterior = problem("surv(time, died) ~ x + (1 | h)", "weibull", columns).posterior
    assert posterior.layout.unravel(posterior.init)["effects of 1 | h"].shape == (130, 1)
    assert np.isfinite(posterior.gradient(posterior.init)).all()
