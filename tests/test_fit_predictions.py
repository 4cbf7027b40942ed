"""Draws of `tallmc.fit` and of estimators predict new rows, in the units of the user."""

import dataclasses

import numpy as np
import pytest
import scipy.stats as stats

import tallmc
from problems import laplace_draws
from tallmc._fit.fit import regression_problem
from tallmc._fit.model import RegressionModel

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
