"""Draws of `tallmc.fit` and of estimators predict new rows, in the units of the user."""

import dataclasses

import numpy as np
import pytest
import scipy.stats as stats

import tallmc
from problems import laplace_draws
from tallmc._fit import regression
from tallmc._fit.fit import regression_problem
from tallmc._fit.model import RegressionModel
from tallmc.cli import main
from tallmc.results.draws import Timing

RNG = np.random.default_rng(6)
N = 400
AGE, REGION = RNG.uniform(20, 60, N), RNG.choice(["north", "south", "west"], N)
EFFECT = np.select([REGION == "south", REGION == "west"], [300.0, -100.0], 0.0)
NEW = {"age": [25.0, 40.0, 58.0, 33.0], "region": ["south", "north", "west", "west"], "id": [1] * 4}


def fitted(table, **chosen) -> tallmc.Draws:
    """Draws from the Laplace approximation of a fit, with the quantities of the fit."""
    posterior = regression_problem(table, RegressionModel(**chosen)).posterior
    return dataclasses.replace(laplace_draws(posterior), quantities=posterior.quantities)


def coefficients(draws) -> np.ndarray:
    """Intercept, age, south, west per draw, in the units of the table."""
    values = draws.values
    parts = [values["Intercept"][..., None], values["age"][..., None], values["C(region)"]]
    return np.concatenate(parts, axis=-1).reshape(-1, 4)


def design(age, region) -> np.ndarray:
    is_south, is_west = (np.asarray(region) == name for name in ("south", "west"))
    return np.column_stack([np.ones(len(age)), age, is_south, is_west])


def test_a_gaussian_fit_predicts_in_the_units_of_the_table():
    income = 1000 + 50 * AGE + EFFECT + 80 * RNG.normal(size=N)
    table = {"age": AGE, "region": REGION, "income": income}
    draws = fitted(table, family="gaussian", formula="income ~ age + C(region)")
    means = coefficients(draws) @ design(NEW["age"], NEW["region"]).T
    found = draws.predict(NEW)
    np.testing.assert_allclose(found.mean, means.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(found.sd, means.std(axis=0), rtol=1e-4)
    assert found.response == "income"
    some = {name: values[:6] for name, values in table.items()}
    sigma = draws.values["sigma"].reshape(-1, 1)
    at = coefficients(draws) @ design(some["age"], some["region"]).T
    expected = stats.norm(at, sigma).logpdf(some["income"])
    log_p = draws.log_likelihood(some).reshape(-1, 6)
    np.testing.assert_allclose(log_p, expected, rtol=1e-5)
    response = draws.predict(NEW, kind="response")
    sd = np.sqrt(np.mean(sigma**2) + means.var(axis=0))
    assert np.abs((response.sd / sd - 1) * np.sqrt(2 * response.n_draws)).max() < 4.6


def test_exposure_is_a_column_of_the_new_table():
    hours = RNG.uniform(1, 5, N)
    counts = RNG.poisson(hours * np.exp(0.02 * AGE + EFFECT / 500))
    table = {"age": AGE, "region": REGION, "calls": counts, "hours": hours}
    draws = fitted(table, family="poisson", formula="calls ~ age + C(region)", exposure="hours")
    short, long = (draws.predict(NEW | {"hours": [h] * 4}).mean for h in (1.0, 10.0))
    np.testing.assert_allclose(long, 10 * short, rtol=1e-10)
    with pytest.raises(tallmc.InvalidInput, match="hours"):
        draws.predict(NEW)
    with pytest.raises(tallmc.InvalidInput, match="offset must be left out for draws from a table"):
        draws.predict(NEW | {"hours": [1.0] * 4}, offset=np.zeros(4))


@pytest.mark.slow
def test_classes_have_the_names_of_the_table():
    mood = np.select([AGE < 30, AGE < 45], ["good", "fair"], "bad")
    chosen = {"formula": "mood ~ age", "level": ("bad", "fair", "good")}
    draws = fitted({"age": AGE, "mood": mood}, family="ordinal", **chosen)
    found = draws.predict(NEW)
    assert found.classes == ("bad", "fair", "good")
    np.testing.assert_allclose(found.mean.sum(axis=1), 1, rtol=1e-10)
    assert found.mean[0].argmax() == 2 and found.mean[2].argmax() == 0


def test_unknown_levels_and_missing_columns_are_errors():
    ill = np.where(RNG.random(N) < 0.5, "yes", "no")
    table = {"age": AGE, "region": REGION, "ill": ill}
    draws = fitted(table, family="bernoulli", formula="ill ~ age + C(region)")
    assert (np.abs(draws.predict(NEW).mean - 0.5) < 0.4).all()
    with pytest.raises(tallmc.InvalidInput, match="east"):
        draws.predict({"age": [30.0], "region": ["east"]})
    with pytest.raises(tallmc.InvalidInput, match="age"):
        draws.predict({"region": ["north"]})


@pytest.mark.slow
def test_draws_of_an_estimator_predict_as_the_estimator_does():
    pytest.importorskip("sklearn")
    from tallmc.interop.sklearn import TallLinearRegression

    X = np.column_stack([AGE, EFFECT])
    estimator = TallLinearRegression(ess=200, random_state=0).fit(
        X, 1000 + 50 * AGE + EFFECT + 80 * RNG.normal(size=N)
    )
    found = estimator.draws_.predict(X[:9], n_draws=None)
    np.testing.assert_allclose(found.mean, estimator.predict(X[:9]), rtol=1e-8)
    with pytest.raises(tallmc.InvalidInput, match="finite matrix with 2 columns"):
        estimator.draws_.predict(X[:9, :1])
    with pytest.raises(tallmc.InvalidInput, match="methods of the estimator"):
        estimator.draws_.log_likelihood((X[:9], AGE[:9]))


def draws_with_groups(formula: str, *, spread: float = 0.2) -> tallmc.Draws:
    """Draws around the start of the search, whose sds and correlations of groups vary."""
    rng = np.random.default_rng(1)
    table = {"y": 9 + 4 * rng.normal(size=60), "x": np.tile([1.0, 5.0], 30)}
    table |= {name: rng.choice(list("abcde"), 60) for name in "gh"}
    chosen = RegressionModel(family="gaussian", formula=formula)
    posterior = regression_problem(table, chosen).posterior
    positions = np.asarray(posterior.init) + spread * rng.normal(size=(2, 150, posterior.dim))
    outcomes, timing = (tallmc.diagnose.Outcome.OK,) * 2, Timing(0.0, 0.0, 0.0)
    made = tallmc.Draws(positions, {}, outcomes, 0, 0, timing, posterior.layout, {})
    return dataclasses.replace(made.with_posterior(posterior), quantities=posterior.quantities)


@pytest.mark.parametrize(
    ("formula", "few_levels"),
    [
        ("y ~ x + (1 + x | g)", 100),
        ("y ~ x + (1 | g) + (1 | h)", 100),
        ("y ~ x + (1 + x | g)", 1),
    ],
    ids=["parameters", "several terms", "integrated"],
)
def test_effects_of_new_groups_have_their_law(monkeypatch, formula, few_levels):
    """Given the draws, new groups are independent, and so are the variances of their predictors."""
    monkeypatch.setattr(regression, "FEW_LEVELS", few_levels)
    draws = draws_with_groups(formula)
    known = {"x": [1.0, 5.0, 2.0], "g": ["a", "c", "c"], "h": ["e", "b", "a"]}
    n_new, x = 400, 6.0
    new = {name: [f"new {k}" for k in range(n_new)] * 2 for name in "gh"}
    rows = {"x": known["x"] + [x] * 2 * n_new} | {name: known[name] + new[name] for name in "gh"}
    found, before = (draws.predict(of, new_groups="draw") for of in (rows, known))
    for name in ("mean", "sd", "low", "high"):  # the two programs may round differently
        np.testing.assert_allclose(getattr(found, name)[:3], getattr(before, name), rtol=1e-13)
    variance = found.sd[3:] ** 2
    np.testing.assert_array_equal(variance[:n_new], variance[n_new:])  # rows of a group share it
    values, centred = draws.values, x - 3.0
    common = (values["Intercept"] + values["x"] * x).var()
    law = values["1|g_sigma"] ** 2
    if "h" in formula:
        law = law + values["1|h_sigma"] ** 2
    else:
        slope = values["x|g_sigma"] * centred
        covariance = values["g_correlation"][..., 0] * values["1|g_sigma"] * slope
        law = law + slope**2 + 2 * covariance
    assert_mean(variance[:n_new] - common, law.mean() * (1 - 1 / found.n_draws))
    if few_levels == 100 and "h" not in formula:
        np.testing.assert_array_equal(draws.predict(known).mean, before.mean)
        simulated = draws.posterior_predictive(rows, new_groups="draw").reshape(found.n_draws, -1)
        wanted = law.mean() + np.mean(values["sigma"] ** 2)
        of_rows = simulated[:, 3 : 3 + n_new].var(axis=0) - common
        assert_mean(of_rows, wanted * (1 - 1 / found.n_draws))


def assert_mean(values, wanted):
    """Independent values have this mean, which they show within a tenth."""
    error = values.std() / np.sqrt(len(values))
    assert abs(values.mean() - wanted) < 4.6 * error < 0.1 * wanted


def test_new_groups_are_drawn_from_the_shell(tmp_path):
    draws = draws_with_groups("y ~ x + (1 | g)")
    draws.save(tmp_path / "draws.nc")
    (tmp_path / "new.csv").write_text("x,g\n1,a\n1,z\n")
    files = tmp_path / "draws.nc", tmp_path / "new.csv", "-o", tmp_path / "p.csv"
    for options, status in (((), 2), (("--new-groups", "draw"), 0)):
        with pytest.raises(SystemExit) as ended:
            main(["predict", *map(str, files), *options])
        assert ended.value.code == status
    wanted = draws.predict({"x": [1.0, 1.0], "g": ["a", "z"]}, new_groups="draw")
    found = np.loadtxt(tmp_path / "p.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(found[:, 1], wanted.sd, rtol=1e-6)


def test_new_groups_are_an_error_that_names_the_option():
    draws = draws_with_groups("y ~ x + (1 | g)")
    rows = {"x": [1.0], "g": ["z"]}
    with pytest.raises(
        tallmc.InvalidInput, match=r"'z' in row 1\. `predict` with new_groups='draw'"
    ):
        draws.predict(rows)
    with pytest.raises(tallmc.InvalidInput, match="new_groups must be 'raise' or 'draw'"):
        draws.predict(rows, new_groups="zero")
    plain = draws_with_groups("y ~ x + C(g)")
    with pytest.raises(tallmc.InvalidInput, match="new_groups must be 'raise' unless"):
        plain.predict(rows, new_groups="draw")
