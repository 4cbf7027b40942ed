"""Missing numbers integrated out: the joint law of responses and known covariates."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

import tallmc
from kept_programs import run_once
from tallmc._fit.fit import regression_model, regression_problem

N = 300


def incomplete(response):
    """A table whose columns b and c lack values: both, either and none in a row."""
    rng = np.random.default_rng(7)
    a = rng.normal(50, 10, N)
    b = 2 + 0.08 * a + rng.normal(size=N)
    c = 0.5 * b + rng.normal(size=N)
    eta = -1 + 0.03 * (a - 50) + 0.6 * (b - 6) - 0.4 * c
    y = {
        "gaussian": eta + 0.5 * rng.normal(size=N),
        "bernoulli": (rng.random(N) < scipy.special.expit(eta)).astype(int),
        "poisson": rng.poisson(np.exp(3 + eta)),
        "binomial": rng.binomial(9, scipy.special.expit(eta)),
    }[response]
    table = pd.DataFrame({"a": a, "b": b, "c": c, "y": y, "n": 9.0})
    table.loc[:19, "b"] = np.nan
    table.loc[10:19, "c"] = np.nan
    table.loc[20:24, "c"] = np.nan
    return table


def problem_of(table, formula="y ~ a + b + c", **options):
    options = {"missing": "impute"} | options
    if options["family"] == "binomial":
        options["trials"] = "n"
    return regression_problem(table, regression_model(formula, **options))


def log_response(family, y, z, sigma):
    """log p(y | z), vectorised in z."""
    match family:
        case "gaussian":
            return scipy.stats.norm.logpdf(y, z, sigma)
        case "bernoulli":
            return scipy.stats.bernoulli.logpmf(y, scipy.special.expit(z))
        case "poisson":
            return scipy.stats.poisson.logpmf(y, np.exp(z))
    return scipy.stats.binom.logpmf(y, 9, scipy.special.expit(z))


@run_once
def of_rows(posterior, position):
    model, block = posterior.model, posterior.rows.columns
    potentials = model.row_potentials(position, block)
    likelihood = posterior.predictive.log_likelihood(position, block)
    return potentials + posterior.predictive.constants(block), likelihood, block.y


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson", "binomial"])
def test_rows_have_the_density_of_what_is_known(family):
    """By integration over missing values; those of a normal response by the normal law."""
    table = incomplete(family)
    problem = problem_of(table, family=family)
    posterior, names = problem.posterior, problem.form.columns.names
    assert names == ("Intercept", "a", "b", "c")
    layout = posterior.layout
    parts = {
        "beta": [3.1 if family == "poisson" else 0.1, 0.3, 0.8, -0.5],
        "log_scale": [math.log(0.4)],
        "imputation_coefficients": [0.05, 0.6, -0.02, 0.4],
        "log imputation sds": np.log([0.8, 0.9]),
        "imputation_correlations": [0.5],
    }
    position = np.concatenate([np.ravel(parts[name]) for name in layout.names])
    found, likelihood, y = map(
        np.asarray, of_rows(posterior, jnp.asarray(position, posterior.dtype))
    )
    x = np.asarray(posterior.rows.columns.x, np.float64)
    scale = float(np.asarray(posterior.predictive.scale))
    beta, coefficients = np.array(parts["beta"]), np.reshape([0.05, 0.6, -0.02, 0.4], (2, 2))
    root = np.diag([0.8, 0.9]) @ [[1, 0], [math.tanh(0.5), math.sqrt(1 - math.tanh(0.5) ** 2)]]
    covariance = root @ root.T
    assert np.isnan(x).sum(axis=0).tolist() == [0, 0, 20, 15]
    for i in (0, 5, 12, 18, 22, 24, 30, 40):
        mean = coefficients @ [1.0, x[i, 1]]
        known = ~np.isnan(x[i, 2:])
        at = scipy.stats.multivariate_normal(
            mean[known], covariance[np.ix_(known, known)]
        ).logpdf(x[i, 2:][known]) if known.any() else 0.0  # fmt: skip
        # The law of the missing values given the known ones, by the block formula.
        gain = covariance[np.ix_(~known, known)] @ np.linalg.pinv(covariance[np.ix_(known, known)])
        centre = mean[~known] + gain @ (x[i, 2:][known] - mean[known])
        rest = covariance[np.ix_(~known, ~known)] - gain @ covariance[np.ix_(known, ~known)]
        slopes = beta[2:][~known]
        m = beta[:2] @ x[i, :2] + beta[2:][known] @ x[i, 2:][known] + slopes @ centre
        s = math.sqrt(slopes @ rest @ slopes)
        value = y[i] * 9 if family == "binomial" else y[i]
        if s == 0:
            expected = log_response(family, value, m, 0.4)
        elif family == "gaussian":
            expected = scipy.stats.norm.logpdf(value, m, math.hypot(s, 0.4))
        else:
            grid = m + s * np.linspace(-9, 9, 20_001)
            logs = log_response(family, value, grid, 0.4) + scipy.stats.norm.logpdf(grid, m, s)
            expected = math.log(scipy.integrate.trapezoid(np.exp(logs), grid))
        expected -= math.log(scale)
        assert likelihood[i] == pytest.approx(expected, rel=2e-5, abs=2e-5)
        # The sampler leaves out −½ log 2π of each known value.
        total = -(expected + at + 0.5 * known.sum() * math.log(2 * math.pi))
        assert found[i] == pytest.approx(total, rel=2e-5, abs=2e-5)


def test_the_prior_of_the_covariates_is_what_the_summary_says():
    posterior = problem_of(incomplete("bernoulli"), family="bernoulli").posterior
    assert "coefficients normal(0, 2.5), sds half_student_t(4, 2.5)" in str(posterior.description)
    at = np.array([0.1, 0.2, 0.3, -0.4, 0.5, -0.3, 0.2, 0.6, math.log(0.7), math.log(1.2), 0.4])

    def log_prior(at):
        a, sds, free = at[4:8], np.exp(at[8:10]), at[10]
        found = scipy.stats.norm.logpdf(a, scale=2.5).sum()
        found += (scipy.stats.t.logpdf(sds, 4, scale=2.5) + np.log(sds)).sum()
        # Correlations tanh(c) are uniform under LKJ(1).
        return found + math.log(1 - math.tanh(free) ** 2)

    other = at + np.r_[np.zeros(4), 0.3, -0.2, 0.1, 0.5, -0.3, 0.4, -0.7]
    found = [float(posterior.model.prior_potential(jnp.asarray(of))) for of in (at, other)]
    assert found[1] - found[0] == pytest.approx(log_prior(at) - log_prior(other), rel=1e-5)


@pytest.mark.parametrize("spread", [20, 0], ids=["rows that differ", "rows that are alike"])
def test_missing_values_of_new_rows_are_drawn_from_their_law(spread):
    problem = problem_of(incomplete("gaussian"), family="gaussian")
    predictive, layout = problem.posterior.predictive, problem.posterior.layout
    position = np.zeros(layout.dim)
    places = layout.split(np.arange(layout.dim))
    position[places["beta"]] = [0.0, 0.2, 1.0, 0.0]
    position[places["imputation_coefficients"][0, 1]] = 0.6
    position[places["log imputation sds"][0]] = math.log(0.8)
    a = np.linspace(50 - spread, 50 + spread, 4000)
    block = predictive.encode(pd.DataFrame({"a": a, "b": np.nan, "c": 1.0}))
    predictors = run_once(predictive.model.predictors)
    z, again = (predictors(jnp.asarray(position, block.x.dtype), block)[:, 0] for _ in range(2))
    np.testing.assert_array_equal(z, again)
    u = (np.asarray(z) - 0.8 * np.asarray(block.x[:, 1])) / 0.8  # c is independent of b here
    assert abs(u.mean()) < 4.6 / math.sqrt(4000)
    assert abs(u.std() - 1) < 4.6 / math.sqrt(8000)
    assert scipy.stats.kstest(u, "norm").pvalue > 1e-5


@pytest.mark.slow
def test_fits_say_so_predict_and_are_loaded(tmp_path):
    table = incomplete("gaussian")
    method = tallmc.methods.sgld(1e-5, batch_size=8)
    short = {"method": method, "chains": 1, "n_draws": 10, "burn_in": 0}
    with pytest.warns(UserWarning, match="b: 20 missing values are integrated out"):
        draws = tallmc.fit(
            "y ~ a + b + c", table, family="gaussian", missing="impute", progress=False, **short
        )
    assert "c: 15 missing values are integrated out, normal given" in repr(draws.summary())
    found = draws.predict(table)
    assert np.isfinite(found.mean).all()
    draws.save(tmp_path / "draws.nc")
    loaded = tallmc.load(tmp_path / "draws.nc")
    np.testing.assert_allclose(loaded.predict(table).mean, found.mean, rtol=1e-4)
    with pytest.raises(tallmc.InvalidInput, match="missing values are integrated out"):
        draws.update(table)
    tallmc.ingest(table[["b", "y"]].dropna(), tmp_path / "rows", response="y", progress=False)
    with pytest.raises(tallmc.InvalidInput, match="be left out with a row store; got 'impute'"):
        problem_of(tmp_path / "rows", family="gaussian")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_draws_are_those_of_nuts_with_a_parameter_per_missing_value(family):
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions
    options = {"noise_variance": 0.25} if family == "gaussian" else {}
    table = incomplete(family)
    draws = tallmc.fit(
        "y ~ a + b + c", table, family=family, missing="impute", progress=False, **options
    )
    block = draws.predictive.encode(table, response=True)
    scale, absent = float(draws.predictive.scale), np.isnan(np.asarray(block.x[:, 2:]))

    def model(y):
        beta = numpyro.sample("beta", dist.Normal(0, jnp.full(4, 2.5)).to_event(1))
        a = numpyro.sample("a", dist.Normal(0, jnp.full((2, 2), 2.5)).to_event(2))
        half_t = dist.FoldedDistribution(dist.StudentT(4.0, 0.0, 2.5)).expand([2]).to_event(1)
        sds = numpyro.sample("sds", half_t)
        correlation = numpyro.sample("correlation", dist.LKJCholesky(2, 1.0))
        missing = numpyro.sample("missing", dist.Normal(0, jnp.ones(absent.sum())).to_event(1))
        # The unit normal prior of the missing values is replaced by that of their rows.
        numpyro.factor("replaced", -dist.Normal(0, 1).log_prob(missing).sum())
        filled = jnp.asarray(block.x[:, 2:]).at[np.nonzero(absent)].set(missing)
        law = dist.MultivariateNormal(block.x[:, :2] @ a.T, scale_tril=sds[:, None] * correlation)
        numpyro.factor("covariates", law.log_prob(filled).sum())
        z = block.x[:, :2] @ beta[:2] + filled @ beta[2:]
        response = dist.Normal(z, 0.5 / scale) if family == "gaussian" else dist.Bernoulli(logits=z)
        numpyro.sample("y", response, obs=y)

    kernel = numpyro.infer.NUTS(model)
    run = numpyro.infer.MCMC(kernel, num_warmup=500, num_samples=4000, progress_bar=False)
    run.run(jax.random.key(0), block.y)
    theirs = {name: np.asarray(of, np.float64) for name, of in run.get_samples().items()}
    parts = draws.layout.split(draws.positions.astype(np.float64))
    pairs = {
        "beta": (parts["beta"], theirs["beta"]),
        "a": (parts["imputation_coefficients"], theirs["a"]),
        "sds": (np.exp(parts["log imputation sds"]), theirs["sds"]),
        "correlation": (
            np.tanh(parts["imputation_correlations"][..., 0]),
            theirs["correlation"][:, 1, 0],
        ),
    }
    assert np.isfinite(tallmc.diagnose.loo(draws).elpd)
    for name, (ours, judge) in pairs.items():
        ours, judge = ours.reshape(-1, *judge.shape[1:]), judge.reshape(len(judge), -1)
        ours = ours.reshape(len(ours), -1)
        # 1,000 effective draws of each: errors of means and of sds, in posterior sds.
        z = (ours.mean(0) - judge.mean(0)) / judge.std(0) / math.sqrt(2 / 1000)
        ratio = np.log(ours.std(0) / judge.std(0)) / math.sqrt(1 / 1000)
        assert np.abs(np.r_[z, ratio]).max() < 4.6, name


@pytest.mark.parametrize(
    ("formula", "options", "message"),
    [
        ("y ~ a * b", {}, "as a term of its own only; got 'a:b'"),
        ("y ~ a + np.log(b)", {}, "as a term of its own only"),
        ("y ~ s(b)", {}, "as a term of its own only"),
        ("y ~ a + b + (1 | n)", {}, "have no group terms"),
        ("y ~ 0 + a + b", {}, "have an intercept and standardised columns; got no intercept"),
        ("y ~ a + b", {"standardise": False}, "got columns as they are"),
        ("y ~ a + b", {"family": "categorical"}, "have a response with one predictor"),
    ],
)
def test_what_cannot_be_imputed_is_refused_with_the_cure(formula, options, message):
    with pytest.raises(tallmc.InvalidInput, match=message) as caught:
        problem_of(incomplete("bernoulli"), formula, **{"family": "bernoulli"} | options)
    assert "Pass --missing indicator or drop" in str(caught.value)
