"""`tallmc.fit`: coefficients, priors and roles of columns mean in the table what they say."""

import json
import warnings

import jax
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import xarray as xr
from formulaic import model_matrix
from scipy import stats
from scipy.special import expit, log_softmax

import tallmc
from problems import slow_after
from tallmc._fit.fit import regression_problem
from tallmc._fit.model import RegressionModel
from tallmc.models.design import GroupedObservations
from tallmc.priors import as_priors
from tallmc.results.saved import node_names

N = 60
QUICK = {"method": tallmc.methods.mala(0.01), "chains": 2, "n_draws": 4, "progress": False}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(8)
    age, dose = rng.uniform(20, 60, N), rng.gamma(2, 100, N)
    trials = rng.integers(1, 6, N)
    return pd.DataFrame(
        {
            "age": age,
            "dose": dose,
            "region": rng.choice(["east", "north", "south"], N),
            "shop": rng.choice([f"s{k}" for k in range(5)], N),
            "off": rng.normal(size=N),
            "hours": rng.uniform(0.5, 2, N),
            "times": rng.integers(1, 4, N),
            "trials": trials,
            "hits": rng.binomial(trials, 0.4),
            "price": 2e5 + 300 * age + rng.normal(scale=4e3, size=N),
            "count": rng.poisson(2, N),
            "bought": rng.choice(["no", "yes"], N),
            "grade": rng.choice(["a", "b", "c", "d"], N),
            "cost": rng.gamma(3, 2, N),
        }
    )


def problem(data, formula, family, prior=None, **options):
    """The problem that `tallmc.fit` samples."""
    names = {"formula" if "~" in formula else "response": formula}
    shown = {term: choice.shown for term, choice in as_priors(prior).items()}
    return regression_problem(data, RegressionModel(family=family, prior=shown, **names, **options))


def positions(posterior, scale=0.5, count=4):
    """Random positions that differ in the coefficients only."""
    rng = np.random.default_rng(1)
    found = np.tile(np.asarray(posterior.init, float), (1, count, 1))
    sizes = dict(zip(posterior.layout.names, map(np.prod, posterior.layout.shapes), strict=True))
    start = 0
    for name, size in sizes.items():
        if name == "beta" or name.startswith("effects"):
            stop = start + int(size)
            found[0, :, start:stop] = rng.normal(scale=scale, size=(count, stop - start))
        start += int(size)
    return found


def potentials(posterior, at):
    return np.array([float(posterior.potential(position)) for position in at[0]])


def predictor_of_sampler(found, at):
    """The linear predictor as the sampler computes it, (draws, rows, ...)."""
    posterior, parts = found.posterior, found.posterior.layout.split(at)
    data, beta = posterior.data, parts["beta"][0]
    if isinstance(data, GroupedObservations):
        z = beta @ np.asarray(data.fixed).T
        effects = [values[0] for name, values in parts.items() if name.startswith("effects")]
        for term, values in zip(data.terms, effects, strict=True):
            z += np.einsum("nr,knr->kn", term.columns, values[:, np.asarray(term.codes)])
    else:
        for name, values in parts.items():
            if name.startswith("effects"):
                beta = np.concatenate([beta, values[0].reshape(len(beta), -1)], axis=1)
        z = np.einsum("nd,kd...->kn...", np.asarray(data.x), beta)
    offset = posterior.data.offset
    return z if offset is None else z + _per_row(offset, z)


def _per_row(values, z):
    """Values per row in the shape of predictors."""
    return np.asarray(values).reshape(1, -1, *[1] * (z.ndim - 2))


def coefficients(found, values):
    """The coefficients of all columns of the design, (draws, columns, ...)."""
    columns, listed = found.form.columns, {}
    for term, places in columns.terms.items():
        entries = values[term][0]
        for number, place in enumerate(places):
            alone = [columns.names[j] for j in places] == [term]
            listed[place] = entries if alone else entries[:, number]
    return np.stack([listed[place] for place in range(len(columns.names))], axis=1)


def predictor_of_table(found, frame, values, formula):
    """The linear predictor from coefficients in the units of the table."""
    matrix = model_matrix(formula, frame)
    x = np.column_stack([matrix[name] for name in found.form.columns.names])
    return np.einsum("nd,kd...->kn...", x, coefficients(found, values))


FORMULAS = ["age * C(region)", "0 + age + dose", "age:C(region) + dose", "0 + C(region)", "dose"]
RESPONSES = {
    "gaussian": "price",
    "student_t": "price",
    "bernoulli": "bought",
    "poisson": "count",
    "negative_binomial": "count",
    "gamma": "cost",
    "categorical": "grade",
}


# Every formula and every family once in the fast suite, and all pairs in the slow one.
CASES = [
    pytest.param(
        offset,
        formula,
        family,
        marks=() if family == "gaussian" or formula == FORMULAS[0] else pytest.mark.slow,
    )
    for offset in (None, "off")
    for formula in FORMULAS
    for family in RESPONSES
]


@pytest.mark.parametrize(("offset", "formula", "family"), CASES)
def test_coefficients_of_the_table_give_the_predictor_of_the_sampler(
    frame, family, formula, offset
):
    if offset is not None and family == "categorical":
        with pytest.raises(tallmc.InvalidInput, match="be left out for family categorical"):
            problem(frame, f"{RESPONSES[family]} ~ {formula}", family, offset=offset)
        return
    found = problem(frame, f"{RESPONSES[family]} ~ {formula}", family, offset=offset)
    at = positions(found.posterior)
    values = found.posterior.quantities.of(at)
    z = predictor_of_table(found, frame, values, formula)
    if offset is not None:
        z = z + _per_row(frame[offset], z)
    response = found.form.encoding.response
    ours = predictor_of_sampler(found, at) * response.sd + response.mean
    np.testing.assert_allclose(ours, z, rtol=1e-9, atol=1e-9 * response.sd)


@pytest.mark.parametrize("formula", slow_after(1, ["age * C(region)", "0 + age + dose"]))
def test_thresholds_and_coefficients_of_the_table_give_the_cumulative_logits(frame, formula):
    found = problem(frame, f"grade ~ {formula}", "ordinal")
    at = positions(found.posterior)
    values = found.posterior.quantities.of(at)
    assert "Intercept" not in values and values["threshold"].shape == (1, 4, 3)
    matrix = model_matrix(formula, frame)
    x = np.column_stack([matrix[name] for name in found.form.columns.names])
    z = coefficients(found, values) @ x.T
    cumulative = expit(values["threshold"][0][:, None, :] - z[:, :, None])
    probabilities = np.diff(cumulative, prepend=0, append=1)
    codes = frame["grade"].map({g: k for k, g in enumerate("abcd")}).to_numpy()
    log_likelihood = np.log(probabilities[:, np.arange(N), codes]).sum(axis=1)
    prior = -0.5 * ((at[0][:, : x.shape[1]] * _sds(found) / 2.5) ** 2).sum(axis=1)
    total = potentials(found.posterior, at) + log_likelihood + prior
    np.testing.assert_allclose(total, total[0], rtol=1e-9)


def _sds(found):
    """The sds of the columns as the sampler sees them."""
    return np.asarray(found.posterior.data.x).std(axis=0)


@pytest.mark.slow
def test_group_terms_give_the_predictor_of_the_sampler(frame):
    formula = "price ~ age + shop + (1 + dose | shop) + (0 + age | region)"
    found = problem(frame, formula, "gaussian", offset="off")
    at = positions(found.posterior)
    values = found.posterior.quantities.of(at)
    z = predictor_of_table(found, frame, values, "age + shop") + frame["off"].to_numpy()
    shop = frame["shop"].str[1:].astype(int).to_numpy()
    region = frame["region"].map({"east": 0, "north": 1, "south": 2}).to_numpy()
    z += values["1|shop"][0][:, shop] + values["dose|shop"][0][:, shop] * frame["dose"].to_numpy()
    z += values["age|region"][0][:, region] * frame["age"].to_numpy()
    response = found.form.encoding.response
    ours = predictor_of_sampler(found, at) * response.sd + response.mean
    np.testing.assert_allclose(ours, z, rtol=1e-9)
    names = found.posterior.quantities.entry_names()
    assert {"shop[s4]", "1|shop[s0]", "dose|shop[s0]", "1|shop_sigma", "age|region[south]"} <= {
        *names
    }
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_a_group_may_have_two_terms_but_none_twice(frame):
    found = problem(frame, "price ~ 1 + (1 | shop) + (0 + age | shop)", "gaussian")
    assert found.posterior.quantities.shapes["age|shop"] == (5,)
    for twice in ("(1 | shop) + (1 | shop)", "(1 | shop) + (1 + age | shop)"):
        with pytest.raises(tallmc.InvalidInput) as caught:
            problem(frame, f"price ~ {twice}", "gaussian")
        assert "\n" not in str(caught.value)


LOG_PRIORS = {
    "normal(2)": lambda b: stats.norm.logpdf(b, 0, 2),
    "normal(1, 2)": lambda b: stats.norm.logpdf(b, 1, 2),
    "student_t(3, 0.25, 0.5)": lambda b: stats.t.logpdf(b, 3, 0.25, 0.5),
    "laplace(0.123456789)": lambda b: -np.abs(b) / 0.123456789,
}
LOG_LIKELIHOODS = {
    "gaussian": lambda frame, z: stats.norm.logpdf(frame["price"], z, 4e3),
    "bernoulli": lambda frame, z: stats.bernoulli.logpmf(frame["bought"] == "yes", expit(z)),
    "probit": lambda frame, z: stats.bernoulli.logpmf(frame["bought"] == "yes", stats.norm.cdf(z)),
    "poisson": lambda frame, z: stats.poisson.logpmf(frame["count"], np.exp(z)),
    "categorical": lambda frame, z: np.take_along_axis(
        log_softmax(np.concatenate([0 * z[..., :1], z], axis=-1), axis=-1),
        np.broadcast_to(
            frame["grade"].map({g: k for k, g in enumerate("abcd")}).to_numpy()[:, None],
            (len(z), N, 1),
        ),
        axis=-1,
    )[..., 0],
}


@pytest.mark.parametrize(
    ("prior", "family"),
    [
        pytest.param(
            prior,
            family,
            marks=() if family == "bernoulli" or prior == "normal(1, 2)" else pytest.mark.slow,
        )
        for prior in LOG_PRIORS
        for family in LOG_LIKELIHOODS
    ],
)
def test_the_posterior_is_that_of_the_table_with_the_stated_prior(frame, family, prior):
    """Up to a constant, in the units of the table; the intercept's prior is that at the means."""
    response = RESPONSES.get(family, "bought")
    options = {"noise_variance": 4e3**2} if family == "gaussian" else {}
    chosen = {"age": prior, "C(region)": prior, "Intercept": "normal(199000, 3000)"}
    found = problem(frame, f"{response} ~ age + C(region)", family, chosen, **options)
    at = positions(found.posterior)
    values = found.posterior.quantities.of(at)
    matrix = model_matrix("age + C(region)", frame)
    x = np.column_stack([matrix[name] for name in found.form.columns.names])
    beta = coefficients(found, values)
    z = np.einsum("nd,kd...->kn...", x, beta)
    log_density = LOG_LIKELIHOODS[family](frame, z).sum(axis=1)
    log_density += LOG_PRIORS[prior](beta[:, 1:]).reshape(len(beta), -1).sum(axis=1)
    at_means = np.einsum("d,kd...->k...", x.mean(axis=0), beta)
    log_density += stats.norm.logpdf(at_means, 199000, 3000).reshape(len(beta), -1).sum(axis=1)
    total = potentials(found.posterior, at) + log_density
    np.testing.assert_allclose(total - total[0], 0, atol=1e-9 * np.abs(log_density).max())


@pytest.mark.parametrize(
    ("prior", "law"),
    [
        ("half_normal(3000)", stats.halfnorm(scale=3000)),
        ("half_student_t(3, 2000)", stats.t(3, scale=2000)),
        ("exponential(0.001)", stats.expon(scale=1000)),
    ],
)
def test_sds_of_groups_have_the_stated_prior(frame, prior, law):
    """The potential as a function of the sd alone, which is in the units of the table."""
    formula, options = "price ~ 1 + (1 | shop)", {"noise_variance": 4e3**2}
    found = problem(frame, formula, "gaussian", {"sd(shop)": prior}, **options)
    plain = problem(frame, formula, "gaussian", {"sd(shop)": "half_normal(1e9)"}, **options)
    assert f"sd(shop) ~ {prior}" in found.posterior.description["prior"]
    at = positions(found.posterior)
    sds = found.posterior.quantities.of(at)["1|shop_sigma"][0]
    difference = potentials(found.posterior, at) - potentials(plain.posterior, at)
    constants = difference + law.logpdf(sds)
    np.testing.assert_allclose(constants, constants[0], rtol=1e-6)
    with pytest.raises(tallmc.InvalidInput, match="prior of an sd"):
        problem(frame, formula, "gaussian", {"sd(shop)": "normal(0, 1)"})
    with pytest.raises(tallmc.InvalidInput, match="name terms"):
        problem(frame, formula, "gaussian", {"sd(region)": prior})


def test_the_default_prior_is_rstanarms_rule_and_said(frame):
    found = problem(frame, "price ~ age", "gaussian", noise_variance=4e3**2)
    sd_y, sd_x = frame["price"].std(ddof=0), frame["age"].std(ddof=0)
    shown = found.posterior.description["prior"]
    assert f"age ~ normal({2.5 * sd_y / sd_x:.4g})" in shown
    assert f"Intercept ~ normal({frame['price'].mean():.4g}, {2.5 * sd_y:.4g})" in shown
    at = positions(found.posterior)
    ridge = 0.5 * (at[0] ** 2).sum(axis=1) / 2.5**2
    flat = problem(frame, "price ~ age", "gaussian", "normal(1e12)", noise_variance=4e3**2)
    total = potentials(found.posterior, at) - potentials(flat.posterior, at) - ridge
    np.testing.assert_allclose(total, total[0], atol=1e-9)


def test_draws_of_a_linear_regression_have_the_moments_of_the_exact_posterior(frame):
    draws = tallmc.fit(
        "price ~ age",
        frame,
        family="gaussian",
        prior={"age": "normal(200)", "Intercept": "normal(1e4, 2e5)"},
        noise_variance=4e3**2,
        **QUICK | {"method": tallmc.methods.mala(0.02), "n_draws": 3000},
    )
    age = frame["age"] - frame["age"].mean()
    x = np.column_stack([np.ones(N), age])
    precision = x.T @ x / 4e3**2 + np.diag([1e4**-2, 200**-2])
    mean = np.linalg.solve(precision, x.T @ frame["price"] / 4e3**2 + [2e5 / 1e4**2, 0])
    covariance = np.linalg.inv(precision)
    shift = np.array([[1, -frame["age"].mean()], [0, 1]])
    mean, covariance = shift @ mean, shift @ covariance @ shift.T
    table = draws.summary()
    assert list(table.index) == ["Intercept", "age"]
    assert np.abs((table["mean"] - mean) / table["mcse_mean"]).max() < 4.6
    assert np.abs((table["sd"] - np.sqrt(np.diag(covariance))) / table["mcse_sd"]).max() < 4.6


def test_horseshoe_spares_the_intercept_and_shows_its_scales(frame):
    found = problem(frame, "count ~ age + dose", "poisson", "horseshoe(0.2)")
    names = found.posterior.quantities.entry_names()
    scales = ["horseshoe_local[0]", "horseshoe_local[1]", "horseshoe_global", "horseshoe_slab"]
    assert names == ["Intercept", "age", "dose", *scales]
    assert (
        "Intercept ~ normal(2.5); age ~ horseshoe(0.2, 2.5, 4)"
        in found.posterior.description["prior"]
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tallmc._fit.fit.FitNote")
def test_a_fit_with_r2d2_has_the_posterior_of_quadrature():
    """One column and known noise: β given R² is normal, and R² has one dimension."""
    rng = np.random.default_rng(0)
    x = rng.normal(5, 3, 30)
    table = pd.DataFrame({"x": x, "y": 1 + 0.3 * x + rng.normal(0, 2, 30)})
    prior = {"x": tallmc.priors.r2d2(0.3, 4), "Intercept": "normal(0, 10)"}
    draws = tallmc.fit(
        "y ~ x", table, family="gaussian", noise_variance=4.0, prior=prior, ess=2000, seed=0
    )
    squares = np.sum((x - x.mean()) ** 2)
    estimate, error = (x - x.mean()) @ table.y / squares, 4 / squares
    logit = np.linspace(-25, 25, 20_001)
    r2 = 1 / (1 + np.exp(-logit))
    spread = 4 * np.exp(logit) / x.var()
    log_weight = 1.2 * np.log(r2) + 2.8 * np.log1p(-r2)
    log_weight -= 0.5 * (np.log(spread + error) + estimate**2 / (spread + error))
    weight = np.exp(log_weight - log_weight.max())
    expected = {"x": estimate * spread / (spread + error), "r2d2_r2": r2}
    summary = draws.summary()
    for name, given_r2 in expected.items():
        mean = given_r2 @ weight / weight.sum()
        assert abs(summary.loc[name, "mean"] - mean) < 4.6 * summary.loc[name, "mcse_mean"]


def test_r2d2_spares_the_intercept_and_shows_r2_and_shares(frame):
    found = problem(frame, "count ~ age + dose", "poisson", "r2d2(0.3, 4)")
    names = found.posterior.quantities.entry_names()
    assert names == ["Intercept", "age", "dose", "r2d2_shares[0]", "r2d2_shares[1]", "r2d2_r2"]
    assert (
        "Intercept ~ normal(2.5); age ~ r2d2(0.3, 4, 0.5)" in found.posterior.description["prior"]
    )
    assert any(note.startswith("r2d2: coefficients near zero") for note in found.notes)
    with pytest.raises(tallmc.InvalidInput, match="not be r2d2 for several classes"):
        problem(frame, "grade ~ age", "categorical", "r2d2()")


BAD = [
    ({"prior": {"agee": "normal(1)"}}, "name terms among Intercept, age, dose; got 'agee'"),
    ({"prior": "cauchy(1)"}, "be one of normal, student_t, laplace, horseshoe"),
    ({"prior": "normal(__import__('os'))"}, "be one of normal, student_t"),
    ({"prior": 3}, "be a prior of tallmc.priors"),
    ({"prior": {"age": "horseshoe(1)", "dose": "horseshoe(2)"}}, "have one horseshoe"),
    ({"prior": {"age": "r2d2(0.3)", "dose": "r2d2(0.4)"}}, "have one r2d2"),
    ({"prior": "r2d2(1.5)"}, "mean_r2 of prior must"),
    ({"family": "wiener"}, "be one of bernoulli, binomial"),
    ({"link": "probit"}, "link must be log for poisson"),
    ({"noise_variance": 1.0}, "be left out unless the family is gaussian"),
    ({"trials": "trials"}, "name a column for family binomial"),
    ({"weights": "weight"}, "weights must name a column of DataFrame"),
    ({"weights": "off"}, "weights must be positive or 0"),
    ({"exposure": "off"}, "exposure must be positive"),
    ({"family": "gaussian", "exposure": "hours"}, "unless the family has the link log"),
    ({"exclude": 3}, "exclude must list names of columns"),
    ({"intercept": False}, "be part of the formula"),
    ({"chains": 0}, "chains must be"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options_are_refused_in_one_line_before_sampling(frame, options, message):
    with pytest.raises(tallmc.InvalidInput) as caught:
        tallmc.fit("count ~ age + dose", frame, **{"family": "poisson"} | QUICK | options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def same_up_to_a_constant(first, second):
    at = positions(first.posterior, scale=0.02)  # columns are not standardised
    values, others = (found.posterior.quantities.of(at) for found in (first, second))
    assert list(values) == list(others)
    total = potentials(first.posterior, at) - potentials(second.posterior, at)
    np.testing.assert_allclose(total - total[0], 0, atol=1e-9 * abs(total[0]) + 1e-8)


def test_a_weight_of_three_is_three_rows(frame):
    prior = {"Intercept": "normal(5)", "age": "normal(1)"}
    options = {"family": "poisson", "prior": prior, "standardise": False}
    repeated = frame.loc[frame.index.repeat(frame["times"])]
    weighted = problem(frame, "count ~ age", weights="times", **options)
    same_up_to_a_constant(weighted, problem(repeated, "count ~ age", **options))
    without = frame.assign(times=frame["times"] - 1)
    kept = problem(without[without["times"] > 0], "count ~ age", weights="times", **options)
    dropped = problem(without, "count ~ age", weights="times", **options)
    same_up_to_a_constant(dropped, kept)
    assert any("rows of weight 0" in note for note in dropped.notes)


def test_exposure_is_an_offset_of_its_logarithm(frame):
    logged = frame.assign(log_hours=np.log(frame["hours"]))
    exposed = problem(frame, "count ~ age", "poisson", exposure="hours")
    at = positions(exposed.posterior)
    offset = problem(logged, "count ~ age", "poisson", offset="log_hours")
    np.testing.assert_allclose(
        potentials(exposed.posterior, at), potentials(offset.posterior, at), rtol=1e-12
    )


def test_trials_count_their_successes(frame):
    found = problem(frame, "hits ~ age", "binomial", trials="trials")
    at = positions(found.posterior)
    values = found.posterior.quantities.of(at)
    z = predictor_of_table(found, frame, values, "age")
    log_density = stats.binom.logpmf(frame["hits"], frame["trials"], expit(z)).sum(axis=1)
    log_density -= 0.5 * (at[0] ** 2).sum(axis=1) / 2.5**2
    total = potentials(found.posterior, at) + log_density
    np.testing.assert_allclose(total, total[0], rtol=1e-9)


def test_level_chooses_what_counts_as_1_and_the_order_of_classes(frame):
    yes, no = (problem(frame, "bought ~ age", "bernoulli", level=level) for level in ("yes", "no"))
    assert no.posterior.description["response level that counts as 1"] == "no"
    at = positions(yes.posterior)
    np.testing.assert_allclose(
        potentials(yes.posterior, at), potentials(no.posterior, -at), rtol=1e-12
    )
    ordered = problem(frame, "grade ~ age", "ordinal", level=("d", "c", "b", "a"))
    assert ordered.posterior.description["response levels"] == "d, c, b, a"
    softmax = problem(frame, "grade ~ age", "categorical", level=("d", "c", "b", "a"))
    assert softmax.posterior.quantities.entry_names()[:3] == [
        "Intercept[c]",
        "Intercept[b]",
        "Intercept[a]",
    ]


def test_missing_values_are_refused_or_dropped_and_said(frame):
    gaps = frame.assign(age=frame["age"].astype("Float64"))
    gaps.loc[[3, 7], "age"] = pd.NA
    with pytest.raises(tallmc.InvalidInput, match="age: 2 missing"):
        tallmc.fit("count ~ age", gaps, family="poisson", **QUICK)
    found = problem(gaps, "count ~ age", "poisson", missing="drop")
    assert any("2 of 60" in note for note in found.notes)
    assert found.posterior.n_rows == N - 2


@pytest.mark.slow
def test_all_kinds_of_tables_give_the_same_problem_and_notes_are_warnings(frame, tmp_path):
    part = frame[["age", "region", "count"]]
    part.to_csv(tmp_path / "t.csv", index=False)
    part.to_parquet(tmp_path / "t.parquet")
    tables = [
        part,
        pl.from_pandas(part),
        pa.Table.from_pandas(part, preserve_index=False),
        part.to_dict("list"),
        {name: part[name].to_numpy() for name in part},
        part.to_dict("records"),
        tmp_path / "t.csv",
        str(tmp_path / "t.parquet"),
    ]
    found = [problem(table, "count", "poisson") for table in tables]
    data = [jax.tree.leaves(each.posterior.data) for each in found]
    for each, leaves in zip(found, data, strict=True):
        assert any("baseline 'east'" in note for note in each.notes)
        assert each.posterior.quantities.shapes == found[0].posterior.quantities.shapes
        for leaf, of_first in zip(leaves, data[0], strict=True):
            np.testing.assert_array_equal(leaf, of_first)
    assert [leaf.shape for leaf in data[0]] == [(N, 4), (N,)]
    with pytest.warns(tallmc._fit.FitNote, match="baseline 'east'") as caught:
        values = tallmc.fit("count", part, family="poisson", **QUICK).values
    assert list(values) == ["Intercept", "age", "region"]
    # A run this short has doubts too. Every warning points at the line that called `fit`.
    assert {warning.category for warning in caught} >= {tallmc.SamplingWarning}
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize(
    ("data", "cure"),
    [
        (scipy.sparse.eye(5, format="csr"), "to_dense()"),
        ([[1.0, 2.0], [3.0, 4.0]], "pandas.DataFrame(rows, columns=[...])"),
        (np.ones((3, 2)), "pandas.DataFrame(rows, columns=[...])"),
        (pl.LazyFrame({"y": [1.0], "x": [1.0]}), "table.collect()"),
        ("no-such-file.csv", "Check the path"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line_with_the_cure(data, cure):
    with pytest.raises(tallmc.InvalidInput) as caught:
        tallmc.fit("y ~ x", data, family="gaussian", **QUICK)
    assert cure in str(caught.value) and "\n" not in str(caught.value)


def test_builders_name_columns_of_frames_and_answer_sparse_and_missing_in_one_line(frame):
    x, y = frame[["age", "dose"]], frame["count"]
    for named in (x, pl.from_pandas(x)):
        posterior = tallmc.models.poisson_regression(named, y, prior_variance=1.0)
        assert posterior.quantities.entry_names() == ["beta[age]", "beta[dose]"]
    listed = tallmc.models.poisson_regression(x.to_numpy().tolist(), y.tolist(), 1.0)
    at = np.array([0.01, -0.001])
    assert float(listed.potential(at)) == float(posterior.potential(at))
    nullable = x.astype("Float64")
    same = tallmc.models.poisson_regression(nullable, y.astype("Int64"), 1.0)
    assert float(same.potential(at)) == float(posterior.potential(at))
    nullable.loc[3, "age"] = pd.NA
    for bad in (scipy.sparse.csr_matrix(x.to_numpy()), nullable, frame[["age", "region"]]):
        with pytest.raises(tallmc.InvalidInput) as caught:
            tallmc.models.poisson_regression(bad, y, 1.0)
        assert "\n" not in str(caught.value)


def test_a_posterior_of_a_frame_has_rows_by_name_or_is_refused_in_one_line(frame):
    def log_likelihood(params, row):
        return -0.5 * (row["count"] - params["a"] - params["b"] * row["age"]) ** 2

    def log_prior(params):
        return -0.5 * (params["a"] ** 2 + params["b"] ** 2)

    init, at = {"a": 0.0, "b": 0.0}, np.array([1.0, 0.1])
    columns = {name: frame[name].to_numpy(float) for name in ("age", "count")}
    exact = tallmc.Posterior(log_likelihood, log_prior, columns, init)
    for given in (frame[["age", "count"]], pl.from_pandas(frame[["age", "count"]])):
        posterior = tallmc.Posterior(log_likelihood, log_prior, given, init)
        assert float(posterior.potential(at)) == float(exact.potential(at))
    for bad in (frame, scipy.sparse.csr_matrix(np.eye(3))):
        with pytest.raises(tallmc.InvalidInput) as caught:
            tallmc.Posterior(log_likelihood, log_prior, bad, init)
        assert "\n" not in str(caught.value)


def test_standardised_results_are_the_positions(frame):
    found = problem(frame, "price ~ age + C(region)", "gaussian", standardised_results=True)
    at = positions(found.posterior)
    values = found.posterior.quantities.of(at)
    np.testing.assert_array_equal(coefficients(found, values), at[0][:, :4])
    np.testing.assert_allclose(values["sigma"], np.exp(at[..., 4]))
    assert found.posterior.description["results"] == "in standardised units"


@pytest.mark.slow
def test_the_description_travels_with_the_draws(frame, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tallmc._fit.FitNote)
        draws = tallmc.fit(
            "bought ~ age + region", frame, family="logistic", store=tmp_path / "run", **QUICK
        )
    loaded = tallmc.load(tmp_path / "run")
    stored = xr.open_datatree(tmp_path / "run" / "draws.zarr", engine="zarr")
    for attributes in (draws.to_datatree().attrs, loaded.to_datatree().attrs, stored.attrs):
        assert attributes["family"] == "bernoulli" and attributes["link"] == "logit"
        assert attributes["response level that counts as 1"] == "yes"
        assert attributes["formula"] == "bought ~ age + region"
        assert "age ~ normal(" in attributes["prior"] and attributes["table"] == "DataFrame"
    assert list(loaded.values) == ["Intercept", "age", "region"]
    assert list(loaded.summary().index) == ["Intercept", "age", "region[north]", "region[south]"]
    for name in draws.values:
        np.testing.assert_array_equal(loaded.values[name], draws.values[name])
    json.dumps(draws.to_datatree().attrs)


ODD = [
    "draw",
    "chain",
    "a/b",
    "a∕b",
    " padded ",
    "<b>",
    "_<b>",
    "x\ty",
    "class",
    "ü" * 300,
    "x_dim",
]


@pytest.mark.slow
def test_odd_names_of_columns_lose_neither_the_run_nor_the_names(tmp_path):
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=N) for name in ODD}
    columns |= {name: rng.choice(["p", "q", "r"], N) for name in ("x", "t/u", "größe", "grüße")}
    columns["y"] = rng.choice(["u", "v", "w"], N)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tallmc._fit.FitNote)
        draws = tallmc.fit("y", columns, family="softmax", store=tmp_path / "run", **QUICK)
    terms = ["Intercept", *(name.strip() for name in ODD), "x", "t/u", "größe", "grüße"]
    assert list(draws.values) == terms
    tree = draws.to_datatree()
    tree.to_netcdf(tmp_path / "draws.nc", engine="netcdf4")
    read = xr.open_datatree(tmp_path / "draws.nc")["posterior"].to_dataset()
    stored = xr.open_datatree(tmp_path / "run" / "draws.zarr", engine="zarr")["posterior"]
    assert len(read.data_vars) == len(stored.data_vars) == len(terms)
    for name, variable in zip(terms, read, strict=True):
        np.testing.assert_array_equal(read[variable].values, draws.values[name])
    written = sorted(float(values.sum()) for values in stored.data_vars.values())
    np.testing.assert_allclose(written, sorted(v.sum() for v in draws.values.values()), rtol=1e-9)
    assert list(read["größe_dim"].values) == ["q", "r"]
    index = list(draws.summary().index)
    assert index[:2] == ["Intercept[v]", "Intercept[w]"] and "a/b[v]" in index
    assert len(set(index)) == len(index)


def test_names_of_nodes_never_collide():
    given = ["a/b", "a∕b", "a∕b_2", "", "_", "_ ", "\n", " ", "chain", "chain_2", "z" * 999]
    found = node_names([*given, "z" * 1000])
    assert len(set(found.values())) == len(found)
    assert found["a∕b"] == "a∕b" and found["a∕b_2"] == "a∕b_2" and found["chain_2"] == "chain_2"


@pytest.fixture(scope="module")
def row_store(frame, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    part = frame[["age", "dose", "off", "times", "price", "count"]]
    part.to_parquet(folder / "t.parquet")
    options = {"dtype": "float64", "progress": False}
    for name, standardise in (("scaled", True), ("raw", False)):
        tallmc.ingest(
            folder / "t.parquet",
            folder / name,
            response="price",
            standardise=standardise,
            **options,
        )
    return folder


def at_coefficients(found, wanted):
    """Positions at which the coefficients, a linear function of them, have wanted values."""
    zero = np.zeros((1, 1, found.posterior.dim))
    steps = np.eye(found.posterior.dim)[None]
    flat = lambda at: coefficients(found, found.posterior.quantities.of(at))
    base = flat(zero)[0]
    matrix = (flat(steps) - base).T
    return np.linalg.solve(matrix, (wanted - base).T).T[None]


FORMULAS_OF_STORES = [
    "price",
    "price ~ age * dose",
    "price ~ 0 + age + dose",
    "price ~ 0 + age:dose + age",
]


@pytest.mark.parametrize(
    ("formula", "standardise"),
    [
        (FORMULAS_OF_STORES[0], True),
        (FORMULAS_OF_STORES[1], False),
        *(
            pytest.param(formula, standardise, marks=pytest.mark.slow)
            for number, formula in enumerate(FORMULAS_OF_STORES)
            for standardise in (True, False)
            if (number, standardise) not in ((0, True), (1, False))
        ),
    ],
)
def test_a_row_store_has_the_posterior_of_its_table(frame, row_store, formula, standardise):
    terms = "age + dose" if "~" not in formula else formula.partition("~")[2]
    matrix = model_matrix(terms, frame)
    # The store does not know the means of products, to which the prior of the intercept refers.
    prior = dict.fromkeys(matrix.columns, "normal(100)")
    if ":" in "".join(matrix.columns) and "Intercept" in prior:
        prior["Intercept"] = "normal(1e15)"
    options = {"noise_variance": 4e3**2, "offset": "off", "weights": "times"}
    if "~" not in formula:
        options["exclude"] = ("count",)
    data = row_store / ("scaled" if standardise else "raw")
    if standardise:
        options |= {"offset": None, "weights": None}
        options["exclude"] = ("count", "off", "times") if "~" not in formula else ()
    columns = frame[["age", "dose", "off", "times", "price", "count"]]
    found = [
        problem(table, formula, "gaussian", prior, **options, standardise=standardise)
        for table in (columns, data)
    ]
    wanted = np.random.default_rng(0).normal(size=(3, matrix.shape[1]))
    values = []
    for each in found:
        assert set(each.form.columns.names) == set(matrix.columns)
        order = [list(matrix.columns).index(name) for name in each.form.columns.names]
        at = at_coefficients(each, wanted[:, order])
        values.append(potentials(each.posterior, at))
    difference = values[0] - values[1]
    np.testing.assert_allclose(difference - difference[0], 0, atol=1e-9 * np.abs(values[0]).max())


@pytest.mark.parametrize(
    ("formula", "options", "message"),
    [
        ("count", {}, "not be standardised in the row store"),
        ("price ~ age", {"response": "dose"}, "be that of the formula, 'price'"),
        ("price", {"exclude": ("nothing",)}, "name columns of the row store"),
        ("price", {"weights": "times"}, "not be standardised"),
        ("price", {"trials": "times", "family": "binomial"}, "Apply it before `tallmc ingest`."),
        ("price ~ age + (1 | shop)", {}, "use columns of the row store; got 'shop'"),
    ],
)
def test_what_a_row_store_cannot_do_is_refused_in_one_line(row_store, formula, options, message):
    names = {"formula" if "~" in formula else "response": formula}
    model = RegressionModel(**{"family": "gaussian", **names, **options})
    with pytest.raises(tallmc.InvalidInput) as caught:
        regression_problem(row_store / "scaled", model)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_weights_of_a_row_store_must_be_positive(frame, tmp_path):
    frame[["age", "price", "off"]].to_parquet(tmp_path / "t.parquet")
    tallmc.ingest(
        tmp_path / "t.parquet",
        tmp_path / "rows",
        response="price",
        standardise=False,
        progress=False,
    )
    with pytest.raises(tallmc.InvalidInput, match=r"--weights \(weights\) must be positive"):
        problem(tmp_path / "rows", "price", "gaussian", weights="off", standardise=False)


def test_weights_of_a_binomial_are_refused(frame):
    with pytest.raises(tallmc.InvalidInput, match="be left out for family binomial"):
        problem(frame, "hits ~ age", "binomial", trials="trials", weights="trials")


@pytest.mark.slow
def test_group_effects_too_small_to_be_seen_are_sampled_without_the_spike():
    """The joint density has no bound where effects and spread are zero; chains do not go there."""
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(size=400), "g": rng.choice(list("abcd"), 400)}
    table["y"] = table["x"] + rng.normal(size=400)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws = tallmc.fit(
            "y ~ x + (1 | g)", table, family="gaussian", ess=50, max_seconds=60, progress=False
        )
    spread = draws.values["1|g_sigma"]
    assert np.median(spread) > 1e-3
    slope = draws.values["x"]
    assert abs(slope.mean() - 1) < 4.6 * slope.std()
