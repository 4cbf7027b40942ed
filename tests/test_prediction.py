"""Predictions from draws: exact laws, brute force, blocks, units, errors."""

import dataclasses
import subprocess
import sys
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.scipy.stats as jstats
import numpy as np
import pytest
import scipy.stats as stats

import tallmc
from problems import exact_posterior, slow_after
from row_stores import stored_logistic
from tallmc._core.arrays import layout_of
from tallmc.models.design import GroupedObservations, GroupTerm, Observations
from tallmc.models.hierarchy import Hierarchical, Horseshoe
from tallmc.models.posterior import ModelPosterior
from tallmc.models.predictive import RegressionPredictive
from tallmc.results.draws import Timing

RNG = np.random.default_rng(5)
X = np.c_[np.ones(40), RNG.normal(size=(40, 2))]
NEW = np.c_[np.ones(7), RNG.normal(size=(7, 2))]
NOISE_VARIANCE = 0.49
MODELS = tallmc.models


def draws_at(positions, posterior, **others) -> tallmc.Draws:
    """Draws with these positions, as if `posterior` had been sampled."""
    outcomes = (tallmc.diagnose.Outcome.OK,) * len(positions)
    timing = Timing(0.0, 0.0, 0.0)
    made = tallmc.Draws(positions, {}, outcomes, 0, 0, timing, posterior.layout, {})
    return dataclasses.replace(made, predictive=posterior.predictive, **others)


def spread_draws(posterior, chains=2, draws=50, seed=1) -> tallmc.Draws:
    """Draws around the start. They need not be draws of the posterior."""
    noise = 0.3 * np.random.default_rng(seed).normal(size=(chains, draws, posterior.dim))
    return draws_at(np.asarray(posterior.init) + noise, posterior)


def gaussian_problem(rng=RNG, dtype=np.float64):
    y = X @ [0.5, 1.0, -1.0] + np.sqrt(NOISE_VARIANCE) * rng.normal(size=len(X))
    return MODELS.linear_regression(
        X.astype(dtype), y.astype(dtype), prior_variance=4.0, noise_variance=NOISE_VARIANCE
    )


def exact_draws(posterior, chains, draws, rng=RNG) -> tallmc.Draws:
    mean, covariance = exact_posterior(posterior)
    return draws_at(rng.multivariate_normal(mean, covariance, size=(chains, draws)), posterior)


def problem(name):
    """The posterior of a family, responses of the new rows, and scipy's law at a position."""
    eta = X @ [0.2, 0.4, -0.3]
    rng = np.random.default_rng(3)
    counts, real = rng.poisson(np.exp(eta)).astype(float), eta + rng.normal(size=40)
    binary = (rng.random(40) < 0.5).astype(float)

    def z(at):
        return NEW @ at[:3]

    new_counts = np.array([0.0, 3, 1, 0, 2, 7, 1])
    new_real = np.linspace(-2, 3, 7)
    new_binary = np.array([0.0, 1, 1, 0, 1, 0, 1])
    match name:
        case "logistic":
            return (
                MODELS.logistic_regression(X, binary, 1.0),
                new_binary,
                lambda at: stats.bernoulli(1 / (1 + np.exp(-z(at)))),
            )
        case "probit":
            return (
                MODELS.probit_regression(X, binary, 1.0),
                new_binary,
                lambda at: stats.bernoulli(stats.norm.cdf(z(at))),
            )
        case "poisson":
            return (
                MODELS.poisson_regression(X, counts, 1.0),
                new_counts,
                lambda at: stats.poisson(np.exp(z(at))),
            )
        case "gaussian":
            posterior = gaussian_problem(rng)
            return posterior, new_real, lambda at: stats.norm(z(at), np.sqrt(NOISE_VARIANCE))
        case "unknown scale":
            return (
                MODELS.linear_regression(X, real, 1.0),
                new_real,
                lambda at: stats.norm(z(at), np.exp(at[3])),
            )
        case "student-t":
            return (
                MODELS.student_t_regression(X, real, 1.0),
                new_real,
                lambda at: stats.t(np.exp(at[4]), z(at), np.exp(at[3])),
            )
        case "gamma":
            return (
                MODELS.gamma_regression(X, np.exp(real), 1.0),
                np.exp(new_real),
                lambda at: stats.gamma(np.exp(at[3]), scale=np.exp(z(at) - at[3])),
            )
        case "negative binomial":
            return (
                MODELS.negative_binomial_regression(X, counts, 1.0),
                new_counts,
                lambda at: stats.nbinom(np.exp(-at[3]), 1 / (1 + np.exp(z(at) + at[3]))),
            )
    raise AssertionError(name)


ONE_NUMBER = ["logistic", "probit", "poisson", "gaussian", "unknown scale", "student-t", "gamma"]
ONE_NUMBER += ["negative binomial"]


def test_gaussian_predictions_have_the_closed_form():
    posterior = gaussian_problem()
    draws, n = exact_draws(posterior, 4, 5000), 20_000
    mean, covariance = exact_posterior(posterior)
    variance = np.einsum("ij,jk,ik->i", NEW, covariance, NEW)
    for kind, sd in (
        ("mean", np.sqrt(variance)),
        ("response", np.sqrt(variance + NOISE_VARIANCE)),
    ):
        found = draws.predict(NEW, kind=kind, n_draws=None, interval=0.8)
        assert found.n_draws == n
        assert np.abs((found.mean - NEW @ mean) / (sd / np.sqrt(n))).max() < 4.6
        assert np.abs((found.sd / sd - 1) * np.sqrt(2 * n)).max() < 4.6
        error = sd * np.sqrt(0.1 * 0.9 / n) / stats.norm.pdf(stats.norm.ppf(0.1))
        for end, level in ((found.low, 0.1), (found.high, 0.9)):
            z = (end - (NEW @ mean + sd * stats.norm.ppf(level))) / error
            assert np.abs(z).max() < 4.6


@pytest.mark.slow
def test_intervals_of_the_response_cover_it_as_often_as_they_say():
    rng, hits = np.random.default_rng(11), []
    for _ in range(300):
        beta = 2 * rng.normal(size=3)
        y = X @ beta + np.sqrt(NOISE_VARIANCE) * rng.normal(size=len(X))
        posterior = MODELS.linear_regression(X, y, 4.0, NOISE_VARIANCE)
        found = exact_draws(posterior, 2, 500, rng).predict(NEW, kind="response", interval=0.7)
        new_y = NEW @ beta + np.sqrt(NOISE_VARIANCE) * rng.normal(size=len(NEW))
        hits.append(np.mean((found.low <= new_y) & (new_y <= found.high)))
    assert abs(np.mean(hits) - 0.7) < 4.6 * np.std(hits) / np.sqrt(len(hits))


def test_logistic_predictions_are_averages_over_draws_by_brute_force():
    posterior, *_ = problem("logistic")
    draws = spread_draws(posterior)
    p = 1 / (1 + np.exp(-NEW @ draws.positions.reshape(-1, 3).T))
    found = draws.predict(NEW, interval=0.5)
    np.testing.assert_allclose(found.mean, p.mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.sd, p.std(axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.low, np.quantile(p, 0.25, axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.high, np.quantile(p, 0.75, axis=1), rtol=1e-12)


@pytest.mark.parametrize("name", ONE_NUMBER)
def test_log_likelihood_has_all_constants(name):
    posterior, y, law = problem(name)
    draws = spread_draws(posterior, 2, 3)
    found = draws.log_likelihood((NEW, y))
    for chain, draw in np.ndindex(2, 3):
        of = law(draws.positions[chain, draw])
        log_density = of.logpmf if isinstance(of.dist, stats.rv_discrete) else of.logpdf
        np.testing.assert_allclose(found[chain, draw], log_density(y), rtol=1e-10)


@pytest.mark.parametrize("name", slow_after(1, ONE_NUMBER))
def test_means_and_simulated_responses_follow_the_law(name):
    posterior, _, law = problem(name)
    position = np.asarray(posterior.init) + np.linspace(-0.3, 0.3, posterior.dim)
    many = draws_at(np.tile(position, (1, 4000, 1)), posterior)
    of = law(position)
    np.testing.assert_allclose(many.predict(NEW, n_draws=1).mean, of.mean(), rtol=1e-10)
    simulated = many.posterior_predictive(NEW, n_draws=None)[0]
    # Ranks of simulated values have bounded moments, also those of heavy tails.
    ranks = of.cdf(simulated) - of.pmf(simulated) / 2 if hasattr(of, "pmf") else of.cdf(simulated)
    z = (ranks.mean(axis=0) - 0.5) / (ranks.std(axis=0) / np.sqrt(len(ranks)))
    assert np.abs(z).max() < 4.6
    spread = np.mean((ranks - 0.5) ** 2, axis=0)
    if not hasattr(of, "pmf"):
        assert np.abs((spread - 1 / 12) / np.sqrt(1 / 180 / len(ranks))).max() < 4.6


@pytest.mark.parametrize("kind", ["mean", "response"])
def test_blocks_do_not_change_predictions(kind, monkeypatch):
    posterior, *_ = problem("unknown scale")
    draws = spread_draws(posterior)
    rows = np.tile(NEW, (9, 1))
    whole = draws.predict(rows, kind=kind, seed=3)
    first = draws.predict(rows[:10], kind=kind, seed=3)
    monkeypatch.setattr("tallmc._rows.passes._BLOCK_FLOATS", 8 * draws.positions[..., 0].size)
    in_blocks = draws.predict(rows, kind=kind, seed=3)
    for name, values in whole.columns().items():
        np.testing.assert_allclose(in_blocks.columns()[name], values, rtol=1e-12)
        np.testing.assert_allclose(first.columns()[name], values[:10], rtol=1e-12)


@pytest.mark.slow
def test_simulated_responses_differ_between_rows_draws_and_seeds():
    posterior, *_ = problem("gaussian")
    same = draws_at(np.tile(np.asarray(posterior.init), (2, 30, 1)), posterior)
    rows = np.tile(NEW[:1], (20, 1))
    one, other = (same.posterior_predictive(rows, seed=seed) for seed in (0, 1))
    assert len(np.unique([one, other])) == 2 * 2 * 30 * 20
    thinned = same.posterior_predictive(rows, n_draws=20)
    np.testing.assert_array_equal(thinned, one[:, 2::3])


@pytest.mark.parametrize("name", slow_after(1, ["softmax", "ordinal"]))
def test_probabilities_of_classes_sum_to_one(name):
    build = getattr(MODELS, f"{name}_regression")
    design = X if name == "softmax" else X[:, 1:]
    posterior = build(design, np.arange(40) % 4, prior_variance=1.0)
    draws, rows = spread_draws(posterior), NEW[:, : design.shape[1]]
    found = draws.predict(rows)
    assert found.mean.shape == (7, 4)
    np.testing.assert_allclose(found.mean.sum(axis=1), 1, rtol=1e-12)
    assert list(found.to_frame().columns)[:5] == [
        "mean[0]",
        "sd[0]",
        "low[0]",
        "high[0]",
        "mean[1]",
    ]
    for k in range(4):
        log_p = draws.log_likelihood((rows, np.full(7, k)))
        np.testing.assert_allclose(np.exp(log_p).mean(axis=(0, 1)), found.mean[:, k], rtol=1e-10)
    share = np.mean(draws.posterior_predictive(np.tile(rows[:1], (900, 1))) == 2)
    assert abs(share - found.mean[0, 2]) < 4.6 * np.sqrt(0.25 / 900)
    with pytest.raises(tallmc.InvalidInput, match="posterior_predictive"):
        draws.predict(rows, kind="response")
    with pytest.raises(tallmc.InvalidInput, match="class"):
        draws.log_likelihood((rows, np.full(7, 4)))


@pytest.mark.slow
def test_offset_and_trials_are_those_of_the_new_rows():
    exposure = np.linspace(1, 4, 7)
    poisson, *_ = problem("poisson")
    draws = spread_draws(poisson)
    plain, longer = draws.predict(NEW), draws.predict(NEW, offset=np.log(exposure))
    np.testing.assert_allclose(longer.mean, exposure * plain.mean, rtol=1e-12)

    trials = np.array([1, 2, 5, 10, 20, 3, 4])
    binomial = MODELS.binomial_regression(X, np.arange(40) % 3, np.full(40, 5), 1.0)
    draws = spread_draws(binomial, 1, 4)
    p = 1 / (1 + np.exp(-NEW @ draws.positions[0].T)).T
    np.testing.assert_allclose(draws.predict(NEW).mean, p.mean(axis=0), rtol=1e-12)
    counted = draws.predict(NEW, trials=trials)
    np.testing.assert_allclose(counted.mean, trials * p.mean(axis=0), rtol=1e-12)
    successes = np.array([0, 2, 3, 4, 20, 0, 1])
    found = draws.log_likelihood((NEW, successes), trials=trials)[0]
    np.testing.assert_allclose(found, stats.binom.logpmf(successes, trials, p), rtol=1e-10)
    simulated = draws.posterior_predictive(NEW, trials=trials)
    np.testing.assert_allclose(simulated, np.round(simulated), atol=1e-12)
    assert (simulated <= trials + 1e-12).all() and (simulated > 1).any()
    with pytest.raises(tallmc.InvalidInput, match="number of trials"):
        draws.log_likelihood((NEW, successes + 3), trials=trials)


def test_responses_are_in_the_units_of_the_user():
    posterior, y, law = problem("unknown scale")
    shift, scale = 100.0, 25.0
    scaled = RegressionPredictive(posterior.model, shift=shift, scale=scale)
    plain = spread_draws(posterior, 1, 5)
    draws = dataclasses.replace(plain, predictive=scaled)
    np.testing.assert_allclose(
        draws.predict(NEW).mean, shift + scale * plain.predict(NEW).mean, rtol=1e-12
    )
    of = law(plain.positions[0, 2])
    response = shift + scale * y
    expected = stats.norm(shift + scale * of.mean(), scale * of.std()).logpdf(response)
    np.testing.assert_allclose(draws.log_likelihood((NEW, response))[0, 2], expected, rtol=1e-10)
    np.testing.assert_allclose(
        draws.posterior_predictive(NEW), shift + scale * plain.posterior_predictive(NEW), rtol=1e-12
    )
    rows = scaled.encode((NEW, response), response=True)
    np.testing.assert_allclose(scaled.observed(rows), response, rtol=1e-12)


def test_an_encoder_turns_the_table_of_the_user_into_rows():
    posterior, *_ = problem("logistic")

    def encode(table, *, response, offset, trials):
        assert not response and offset is None and trials is None
        return Observations(jnp.asarray(NEW[table]), jnp.zeros(len(table)))

    predictive = RegressionPredictive(
        posterior.model, encoder=encode, classes=("no", "yes"), response_name="clicked"
    )
    plain = spread_draws(posterior)
    draws = dataclasses.replace(plain, predictive=predictive)
    found = draws.predict([3, 1])
    np.testing.assert_allclose(found.mean, plain.predict(NEW[[3, 1]]).mean, rtol=1e-12)
    assert "clicked" in repr(found) and found.classes is None


@pytest.mark.slow
def test_hyper_parameters_do_not_change_predictions():
    posterior, y, _ = problem("unknown scale")
    shrunk = Horseshoe((1, 2), jnp.asarray(1.0), jnp.asarray(1.0), jnp.asarray(4.0))
    start = {"beta": jnp.zeros(3), "log_scale": jnp.zeros(()), "scales": jnp.zeros(4)}
    layout, init = layout_of(start)
    model = Hierarchical(init=init, layout=layout, inner=posterior.model, hyperprior=shrunk)
    hierarchical = spread_draws(ModelPosterior(model, posterior.rows))
    plain = draws_at(hierarchical.positions[..., :4], posterior)
    np.testing.assert_array_equal(hierarchical.predict(NEW).mean, plain.predict(NEW).mean)
    np.testing.assert_array_equal(
        hierarchical.log_likelihood((NEW, y)), plain.log_likelihood((NEW, y))
    )
    np.testing.assert_array_equal(
        hierarchical.posterior_predictive(NEW), plain.posterior_predictive(NEW)
    )


def test_rows_with_group_terms_predict():
    posterior, *_ = problem("logistic")
    codes = np.arange(7) % 2
    term = GroupTerm(jnp.asarray(codes), jnp.ones((7, 1)), 2)
    rows = GroupedObservations(jnp.asarray(NEW), jnp.zeros(7), None, None, (term,))
    layout, init = layout_of({"beta": jnp.zeros(3), "group": jnp.zeros((2, 1))})
    model = dataclasses.replace(posterior.model, init=init, layout=layout)
    draws = spread_draws(ModelPosterior(model, posterior.rows))
    flat = draws.positions.reshape(-1, 5)
    z = NEW @ flat[:, :3].T + flat[:, 3:].T[codes]
    np.testing.assert_allclose(
        draws.predict(rows).mean, (1 / (1 + np.exp(-z))).mean(axis=1), rtol=1e-12
    )
    with pytest.raises(tallmc.InvalidInput, match="have 5 columns"):
        draws.predict(NEW)


def test_columns_of_data_frames_are_found_by_name():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    names = ["one", "age", "income"]
    y = (X[:, 1] > 0).astype(float)
    posterior = MODELS.logistic_regression(pd.DataFrame(X, columns=names), y, 1.0)
    draws = spread_draws(posterior)
    expected = draws.predict(NEW).mean
    frame = pd.DataFrame(NEW, columns=names)[["income", "one", "age"]]
    for given in (frame, pl.DataFrame({name: frame[name].to_numpy() for name in frame})):
        np.testing.assert_array_equal(draws.predict(given).mean, expected)
    with pytest.raises(tallmc.InvalidInput, match="no column 'age'"):
        draws.predict(frame.rename(columns={"age": "Age"}))
    with pytest.raises(tallmc.InvalidInput, match="the column 'id'"):
        draws.predict(frame.assign(id=1.0))


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (NEW[:, :2], {}, "have 3 columns, as in the fit; got 2"),
        (NEW[0], {}, "be a matrix"),
        (np.where(NEW > 1, np.nan, NEW), {}, "NaN or infinity in row"),
        (NEW, {"offset": np.ones(3)}, "offset must have one value per row"),
        (NEW, {"trials": np.ones(7)}, "trials must be left out"),
        (NEW, {"interval": 1.0}, "interval must be a finite number and > 0 and < 1"),
        (NEW, {"kind": "median"}, 'kind must be "mean" or "response"'),
        (NEW, {"n_draws": 0}, "draws must be an int of at least 1"),
        (NEW, {"seed": -1, "kind": "response"}, "seed must be"),
        ([["a", "b", "c"]], {}, "be numbers|real numbers"),
    ],
)
def test_bad_rows_and_options_are_errors(rows, options, message):
    posterior, *_ = problem("logistic")
    with pytest.raises(tallmc.InvalidInput, match=message):
        spread_draws(posterior).predict(rows, **options)


def test_responses_that_are_missing_or_impossible_are_errors():
    posterior, y, _ = problem("logistic")
    draws = spread_draws(posterior)
    with pytest.raises(tallmc.InvalidInput, match=r"be a pair \(X, y\)"):
        draws.log_likelihood(NEW)
    with pytest.raises(tallmc.InvalidInput, match="be 0 or 1 in every row; got 2 in row 1"):
        draws.log_likelihood((NEW, y + 1))
    with pytest.raises(tallmc.InvalidInput, match="one value per row"):
        draws.log_likelihood((NEW, y[:3]))


def test_failed_chains_are_left_out():
    posterior, *_ = problem("logistic")
    good = spread_draws(posterior, 3)
    positions = good.positions.copy()
    positions[1, 20:] = np.nan
    outcomes = (
        tallmc.diagnose.Outcome.OK,
        tallmc.diagnose.Outcome.NON_FINITE,
        tallmc.diagnose.Outcome.OK,
    )
    draws = dataclasses.replace(good, positions=positions, outcomes=outcomes)
    without = dataclasses.replace(good, positions=good.positions[::2], outcomes=outcomes[::2])
    np.testing.assert_array_equal(draws.predict(NEW).mean, without.predict(NEW).mean)
    simulated = draws.posterior_predictive(NEW)
    assert np.isnan(simulated[1]).all() and np.isfinite(simulated[::2]).all()
    nothing = dataclasses.replace(draws, outcomes=outcomes[1:2] * 3)
    with pytest.raises(tallmc.InvalidInput, match="have a chain that completed"):
        nothing.predict(NEW)


def test_draws_of_decreasing_steps_are_weighted():
    posterior, *_ = problem("gaussian")
    steps = np.tile(np.linspace(2, 0.1, 50), (2, 1))
    draws = dataclasses.replace(spread_draws(posterior), sample_stats={"step_size": steps})
    values = NEW @ draws.positions.reshape(-1, 3).T
    found = draws.predict(NEW, interval=0.6)
    weights = steps.ravel()
    mean = values @ weights / weights.sum()
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    variance = (values - mean[:, None]) ** 2 @ weights / weights.sum()
    np.testing.assert_allclose(found.sd, np.sqrt(variance), rtol=1e-12)
    for row in range(7):
        at = np.argsort(values[row])
        share = np.cumsum(weights[at]) / weights.sum()
        assert found.low[row] == pytest.approx(values[row][at][np.argmax(share >= 0.2)], rel=1e-12)


def test_single_precision_predicts_as_double_precision_does():
    posterior = gaussian_problem(np.random.default_rng(2), np.float32)
    draws = spread_draws(posterior)
    single = dataclasses.replace(draws, positions=draws.positions.astype(np.float32))
    with jax.enable_x64(False):
        found = single.predict(NEW)
    values = NEW @ draws.positions.reshape(-1, 3).T
    np.testing.assert_allclose(found.mean, values.mean(axis=1), rtol=1e-5, atol=1e-6)
    assert single.posterior_predictive(NEW.astype(np.float32)).dtype == np.float32


@pytest.mark.slow
def test_loaded_draws_predict_once_they_have_their_posterior(tmp_path):
    posterior = gaussian_problem(np.random.default_rng(2))
    draws = tallmc.sample(
        posterior, tallmc.methods.mala(0.01), n_draws=50, chains=2, store=tmp_path / "run"
    )
    loaded = tallmc.load(tmp_path / "run")
    with pytest.raises(tallmc.InvalidInput, match=r"draws.with_posterior\(posterior\)"):
        loaded.predict(NEW)
    found = loaded.with_posterior(posterior).predict(NEW)
    np.testing.assert_array_equal(found.mean, draws.predict(NEW).mean)
    other, *_ = problem("gamma")
    with pytest.raises(tallmc.InvalidInput, match="have the parameters of the draws"):
        loaded.with_posterior(other)


def own_posterior(**functions):
    return tallmc.Posterior(
        log_likelihood=lambda params, row: jstats.norm.logpdf(
            row["y"], params["slope"] * row["x"], params["sd"]
        ),
        log_prior=lambda params: jstats.norm.logpdf(params["slope"]) - params["sd"],
        data={"x": X[:, 1], "y": X[:, 2]},
        init={"sd": 1.0, "slope": 0.0},
        transforms={"sd": "positive"},
        **functions,
    )


def test_own_densities_know_the_log_likelihood_only():
    pytest.importorskip("numpyro")
    draws = spread_draws(own_posterior(), 1, 3)
    rows = {"x": NEW[:, 1], "y": NEW[:, 2]}
    sd, slope = np.exp(draws.positions[0, 1, 0]), draws.positions[0, 1, 1]
    expected = stats.norm(slope * rows["x"], sd).logpdf(rows["y"])
    np.testing.assert_allclose(draws.log_likelihood(rows)[0, 1], expected, rtol=1e-10)
    with pytest.raises(tallmc.InvalidInput, match=r"Posterior\(..., mean=function"):
        draws.predict(rows)
    with pytest.raises(tallmc.InvalidInput, match=r"Posterior\(..., simulate=function"):
        draws.posterior_predictive(rows)
    with pytest.raises(tallmc.InvalidInput, match="structure of the posterior's data"):
        draws.log_likelihood({"x": NEW[:, 1]})


def test_own_densities_predict_with_functions_of_the_user():
    pytest.importorskip("numpyro")
    posterior = own_posterior(
        mean=lambda params, row: params["slope"] * row["x"],
        simulate=lambda key, params, row: (
            params["slope"] * row["x"] + params["sd"] * jax.random.normal(key)
        ),
    )
    position = np.array([np.log(0.5), 2.0])
    draws = draws_at(np.tile(position, (1, 4000, 1)), posterior)
    rows = {"x": NEW[:, 1], "y": NEW[:, 2]}
    np.testing.assert_allclose(draws.predict(rows).mean, 2 * rows["x"], rtol=1e-12)
    simulated = draws.posterior_predictive(rows, n_draws=None)[0]
    assert np.abs((simulated.mean(axis=0) - 2 * rows["x"]) / (0.5 / np.sqrt(4000))).max() < 4.6
    assert np.abs((simulated.std(axis=0) / 0.5 - 1) * np.sqrt(2 * 4000)).max() < 4.6


@pytest.mark.slow
def test_datatree_has_the_predictive_groups_of_arviz():
    import arviz_stats

    posterior = gaussian_problem(np.random.default_rng(2))
    draws, y = exact_draws(posterior, 4, 500), np.asarray(posterior.data.y)
    tree = draws.to_datatree(posterior_predictive=(X, y), log_likelihood=posterior.data)
    assert tree["posterior_predictive"]["y"].dims == ("chain", "draw", "row")
    assert tree["posterior_predictive"]["y"].shape == (4, 500, 40)
    alone = draws.to_datatree(posterior_predictive=(X, y))["posterior_predictive"]
    np.testing.assert_array_equal(alone["draw"].values, np.arange(250) * 2 + 1)
    np.testing.assert_array_equal(tree["observed_data"]["y"].values, y)
    np.testing.assert_array_equal(tree["log_likelihood"]["y"].values, draws.log_likelihood((X, y)))
    found = arviz_stats.loo(tree)
    assert found.n_data_points == 40 and 1 < found.p < 5
    assert "observed_data" not in draws.to_datatree(posterior_predictive=NEW).children


def test_too_many_values_are_refused_before_they_are_computed():
    posterior, *_ = problem("logistic")
    draws = spread_draws(posterior, 2, 5000)
    with pytest.raises(tallmc.InvalidInput, match="fewer draws"):
        draws.posterior_predictive(np.ones((60_000, 3)), n_draws=None)


def test_predictions_become_tables():
    posterior, *_ = problem("logistic")
    found = spread_draws(posterior).predict(NEW)
    assert found.to_frame().shape == (7, 4) and len(found) == 7
    arrow = pytest.importorskip("pyarrow")
    assert isinstance(found.to_arrow(), arrow.Table)
    np.testing.assert_array_equal(found.to_arrow()["low"].to_numpy(), found.low)


# Rows beyond memory.

_LIMIT = 200 * 2**20
"""What docs/prediction.md promises beside the draws and the result."""


def calls_on(posterior, draws):
    return {
        "average": lambda: draws.average_response(posterior.rows, n_draws=8),
        "loo": lambda: tallmc.diagnose.loo(draws, posterior, n=100),
        "predict": lambda: draws.predict(posterior.rows, n_draws=8),
    }


@pytest.mark.parametrize("name", ["average", "loo", "predict"])
def test_memory_of_the_host_does_not_grow_with_the_rows_of_a_store(name, tmp_path):
    """Beside 32 bytes per row that `predict` returns; second calls, which compile nothing."""
    peaks = []
    for n_rows in (8192, 81_920):
        posterior, _ = stored_logistic(tmp_path / str(n_rows), n_rows, dim=20, shard_rows=4096)
        draws = spread_draws(posterior)
        call = calls_on(posterior, draws)[name]
        call()
        tracemalloc.start()
        call()
        peaks.append(tracemalloc.get_traced_memory()[1] - 32 * n_rows * (name == "predict"))
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 81_920, "a byte per row"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the data segment")
def test_a_store_larger_than_the_limit_on_memory(tmp_path):
    """The program, its libraries and compiled programs are there before the limit."""
    work = f"""
import resource
from pathlib import Path
import tallmc
from tallmc.cli.demo import Simulation
from test_prediction import _LIMIT, calls_on, spread_draws

def posterior(n_rows):
    store = Path({str(tmp_path)!r}) / str(n_rows)
    Simulation(n_rows, 20, seed=0).into_row_store(store)
    return tallmc.models.logistic_regression(tallmc.rows.open(store), prior_variance=10.0)

small, large = posterior(20_000), posterior(3_500_000)
assert sum(f.stat().st_size for f in large.rows.shards.folder.iterdir()) > 1.3 * _LIMIT
draws = spread_draws(small)
hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
for name, call in calls_on(large, draws).items():
    calls_on(small, draws)[name]()
    status = Path("/proc/self/status").read_text().split("VmData:")[1]
    most = 1024 * int(status.split()[0]) + _LIMIT + 32 * large.n_rows * (name == "predict")
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    call()
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
"""
    done = subprocess.run([sys.executable, "-c", work], cwd=Path(__file__).parent, check=False)
    assert done.returncode == 0
