"""Prior predictive draws: their law, their rows and their picture."""

import numpy as np
import pandas as pd
import pytest

import tallmc
from tallmc._core.statistics import evenly
from tallmc._fit.prior_predictive import PriorPredictive
from tallmc.report import write_prior_predictive
from tallmc.report.page import prior_chart

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"x": RNG.normal(3, 2, 40), "y": RNG.normal(50, 5, 40)})
DRAWS = 4000
prior_predictive = tallmc.diagnose.prior_predictive


def z_of_squares(values, variance):
    """z-scores of mean squares of normal draws with this variance."""
    return (np.mean(values**2 / variance, axis=0) - 1) / np.sqrt(2 / len(values))


@pytest.fixture(scope="module")
def linear():
    priors = {"x": "normal(0, 0.7)", "Intercept": "normal(40, 3)"}
    return prior_predictive(
        "y ~ x",
        TABLE,
        family="gaussian",
        prior=priors,
        noise_variance=4.0,
        n_draws=DRAWS,
        n_rows=7,
    )


def test_responses_have_their_law_under_the_prior(linear):
    """y = α + β(x − x̄) + noise, where α is the intercept at the mean of x."""
    chosen = evenly(len(TABLE), 7)
    np.testing.assert_allclose(linear.observed, TABLE.y[chosen])
    assert linear.simulated.shape == (DRAWS, 7)
    from_mean = TABLE.x[chosen].to_numpy() - TABLE.x.mean()
    variance = 9 + 0.49 * from_mean**2 + 4.0
    centred = linear.simulated - 40
    assert np.abs(centred.mean(axis=0) / np.sqrt(variance / DRAWS)).max() < 4.6
    assert np.abs(z_of_squares(centred, variance)).max() < 4.6
    # Two rows share the parameters of a draw, and no more.
    expected = 9 + 0.49 * from_mean[0] * from_mean[1]
    products = centred[:, 0] * centred[:, 1]
    assert abs(products.mean() - expected) < 4.6 * products.std() / np.sqrt(DRAWS)


def test_parameters_are_in_the_units_of_the_table(linear):
    assert set(linear.values) == {"Intercept", "x"}
    assert abs(z_of_squares(linear.values["x"], 0.49)) < 4.6
    at_mean = linear.values["Intercept"] + TABLE.x.mean() * linear.values["x"]
    assert abs(z_of_squares(at_mean - 40, 9.0)) < 4.6
    assert "x ~ normal(0.7)" in linear.prior


def test_effects_of_many_groups_come_from_their_prior_and_not_from_the_rows():
    """A fit would integrate these effects out, and draw them given the rows."""
    groups = np.repeat(np.arange(150), 2)
    table = pd.DataFrame({"g": groups.astype(str), "y": np.repeat(RNG.normal(0, 50, 150), 2)})
    found = prior_predictive(
        "y ~ 1 + (1 | g)",
        table,
        family="gaussian",
        prior={"Intercept": "normal(0, 1)", "sd(g)": "half_normal(0.1)"},
        noise_variance=1e-8,
        n_draws=20,
    )
    sds = found.values["1|g_sigma"]
    effects = found.simulated[:, ::2] - found.values["Intercept"][:, None]
    assert effects.shape == (20, 150)
    assert np.abs(z_of_squares(effects.T, sds**2)).max() < 4.6
    np.testing.assert_allclose(found.simulated[:, ::2], found.simulated[:, 1::2], atol=1e-2)


def test_rows_of_a_store_have_the_same_draws(tmp_path, linear):
    path = tmp_path / "table.csv"
    TABLE.to_csv(path, index=False)
    tallmc.ingest(path, tmp_path / "rows", response="y", dtype="float64")
    found = prior_predictive(
        "y ~ x",
        tmp_path / "rows",
        family="gaussian",
        prior={"x": "normal(0, 0.7)", "Intercept": "normal(40, 3)"},
        noise_variance=4.0,
        n_draws=DRAWS,
        n_rows=7,
    )
    np.testing.assert_allclose(found.observed, linear.observed, rtol=1e-5)
    np.testing.assert_allclose(found.simulated, linear.simulated, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["bernoulli", "negative_binomial", "ordinal", "categorical", "weibull"]
)
@pytest.mark.filterwarnings("ignore::tallmc._fit.fit.FitNote")
def test_every_kind_of_response_has_its_picture(family, tmp_path):
    response = {
        "bernoulli": RNG.integers(0, 2, 40),
        "negative_binomial": RNG.poisson(3, 40),
        "ordinal": RNG.integers(0, 3, 40),
        "categorical": RNG.integers(0, 3, 40),
        "weibull": RNG.exponential(size=40),
    }[family]
    table = TABLE.assign(y=response, event=1)
    left = "surv(y, event)" if family == "weibull" else "y"
    prior = {"x": "horseshoe()"} if family == "bernoulli" else None
    found = prior_predictive(
        f"{left} ~ s(x, k=5)" if family == "ordinal" else f"{left} ~ x",
        table,
        family=family,
        prior=prior,
    )
    assert found.simulated.shape == (200, 40) and not np.isnan(found.simulated).any()
    assert (found.observed is None) == (family == "weibull")
    write_prior_predictive(found, tmp_path / "prior.html")
    page = (tmp_path / "prior.html").read_text()
    assert "Prior predictive check of y" in page and "Observed and simulated y" in page


def by_hand(observed, simulated):
    return PriorPredictive({}, simulated, observed, "<y>", None, "x ~ normal(1)")


def test_the_picture_shows_shares_roots_or_densities(tmp_path):
    binary = by_hand(np.array([0.0, 1.0]), np.array([[0.0, 0.0], [1.0, 0.0]]))
    counts = by_hand(np.array([0.0, 5.0]), np.array([[0.0, 9.0], [3.0, 2.0]]))
    numbers = by_hand(RNG.normal(size=50), 100 * RNG.normal(size=(20, 50)))
    censored = by_hand(None, RNG.exponential(size=(20, 50)))
    assert "Bars: share in the data" in prior_chart(binary)
    assert "Bars: root of the share" in prior_chart(counts)
    assert "Line: the data. Band: 90 %" in prior_chart(numbers)
    assert "Line: the data" not in prior_chart(censored) and "Band" in prior_chart(censored)
    overflown = by_hand(RNG.normal(size=50), np.full((20, 50), np.inf))
    assert "Line: the data" in prior_chart(overflown)
    write_prior_predictive(numbers, tmp_path / "prior.html")
    page = (tmp_path / "prior.html").read_text()
    assert "&lt;y&gt;" in page and "<y>" not in page and "x ~ normal(1)" in page


def test_bad_input_is_refused():
    with pytest.raises(tallmc.InvalidInput, match="ess must be left out: only options of"):
        prior_predictive("y ~ x", TABLE, family="gaussian", ess=400)
    with pytest.raises(tallmc.InvalidInput, match="n_draws must be"):
        prior_predictive("y ~ x", TABLE, family="gaussian", n_draws=0)
    with pytest.raises(tallmc.InvalidInput, match="found must be a PriorPredictive"):
        write_prior_predictive(TABLE, "prior.html")


def test_r2d2_has_the_same_law_for_columns_of_any_scale():
    table = TABLE.assign(w=RNG.normal(size=40))
    for columns in ("standardised", "as they are"):
        found = prior_predictive(
            "y ~ x + w",
            table,
            family="gaussian",
            prior="r2d2(0.4, 5)",
            noise_variance=4.0,
            standardise=columns == "standardised",
            n_draws=DRAWS,
            n_rows=1,
        )
        r2, shares = found.values["r2d2_r2"], found.values["r2d2_shares"]
        np.testing.assert_allclose(shares.sum(axis=1), 1)
        for k, column in enumerate(("x", "w")):
            variance = 4 * shares[:, k] * r2 / (1 - r2) / table[column].var(ddof=0)
            assert abs(z_of_squares(found.values[column], variance)) < 4.6
