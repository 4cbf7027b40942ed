"""Answers of others: reference draws of posteriordb, results of statsmodels, golden files of glum.

Nothing of theirs is kept here. Clones of posteriordb, glum and Bambi are in the folders that
TALLMC_POSTERIORDB, TALLMC_GLUM and TALLMC_BAMBI name; the packages are installed by
`pip install statsmodels glum formulae`. What is absent is skipped.
`docs/judges.md` says what passed and what did not apply.
"""

import functools
import importlib
import importlib.util
import json
import os
import re
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
import pandas as pd
import pytest
import scipy.linalg

import tallmc
from tallmc._fit.encoding import make_design
from tallmc._fit.fit import regression_model
from tallmc._fit.reading import read_table

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def _flat(beta, sigma):
    return 0.0


def _half_cauchy(beta, sigma):
    return stats.cauchy.logpdf(sigma, 0.0, 2.5)


def _normal(beta, sigma):
    return stats.norm.logpdf(beta, 0.0, 10.0).sum() + stats.norm.logpdf(sigma, 0.0, 10.0)


def _kilpisjarvi(beta, sigma):
    return stats.norm.logpdf(
        beta, jnp.array([9.31290322580645, 0.0]), jnp.array([100.0, 1 / 30])
    ).sum()


def _kidiq(d, hs=0.0, iq=0.0, scale=1.0):
    hs, iq = (d["mom_hs"] - hs) / scale, (d["mom_iq"] - iq) / scale
    return [hs, iq, hs * iq]


def _standardised(x, sds=1):
    return (x - x.mean()) / (sds * x.std(ddof=1))


def _mesquite(d, names):
    area = d["diam1"] * d["diam2"]
    logs = {
        "volume": area * d["canopy_height"],
        "area": area,
        "shape": d["diam1"] / d["diam2"],
        "height": d["total_height"],
        "density": d["density"],
    }
    return [np.log(logs[name]) for name in names] + [d["group"]]


_MESQUITE = ("diam1", "diam2", "canopy_height", "total_height", "density")
_NES = (("real_ideo", "race_adj"), ("educ1", "gender", "income"))
# By posterior: the response and the columns beside the intercept, as functions of the data, and
# the log prior. They restate the Stan programs of posteriordb.
POSTERIORS = {
    "earnings-earn_height": ("earn", lambda d: [d["height"]], _flat),
    "earnings-log10earn_height": (lambda d: np.log10(d["earn"]), lambda d: [d["height"]], _flat),
    "earnings-logearn_height": (lambda d: np.log(d["earn"]), lambda d: [d["height"]], _flat),
    "earnings-logearn_height_male": (
        lambda d: np.log(d["earn"]),
        lambda d: [d["height"], d["male"]],
        _flat,
    ),
    "earnings-logearn_interaction": (
        lambda d: np.log(d["earn"]),
        lambda d: [d["height"], d["male"], d["height"] * d["male"]],
        _flat,
    ),
    "earnings-logearn_interaction_z": (
        lambda d: np.log(d["earn"]),
        lambda d: [_standardised(d["height"]), d["male"], _standardised(d["height"]) * d["male"]],
        _flat,
    ),
    "earnings-logearn_logheight_male": (
        lambda d: np.log(d["earn"]),
        lambda d: [np.log(d["height"]), d["male"]],
        _flat,
    ),
    "kidiq-kidscore_momhs": ("kid_score", lambda d: [d["mom_hs"]], _half_cauchy),
    "kidiq-kidscore_momiq": ("kid_score", lambda d: [d["mom_iq"]], _half_cauchy),
    "kidiq-kidscore_momhsiq": ("kid_score", lambda d: [d["mom_hs"], d["mom_iq"]], _half_cauchy),
    "kidiq-kidscore_interaction": ("kid_score", _kidiq, _half_cauchy),
    "kidiq_with_mom_work-kidscore_interaction_c": (
        "kid_score",
        lambda d: _kidiq(d, d["mom_hs"].mean(), d["mom_iq"].mean()),
        _flat,
    ),
    "kidiq_with_mom_work-kidscore_interaction_c2": (
        "kid_score",
        lambda d: _kidiq(d, 0.5, 100.0),
        _flat,
    ),
    "kidiq_with_mom_work-kidscore_interaction_z": (
        "kid_score",
        lambda d: _kidiq(
            {name: _standardised(d[name], sds=2) for name in ("mom_hs", "mom_iq")},
        ),
        _flat,
    ),
    "kidiq_with_mom_work-kidscore_mom_work": (
        "kid_score",
        lambda d: [1.0 * (d["mom_work"] == level) for level in (2, 3, 4)],
        _flat,
    ),
    "kilpisjarvi_mod-kilpisjarvi": ("y", lambda d: [d["x"]], _kilpisjarvi),
    "mesquite-mesquite": (
        "weight",
        lambda d: [d[name] for name in (*_MESQUITE, "group")],
        _flat,
    ),
    "mesquite-logmesquite": (
        lambda d: np.log(d["weight"]),
        lambda d: [*(np.log(d[name]) for name in _MESQUITE), d["group"]],
        _flat,
    ),
    **{
        f"mesquite-logmesquite_{name}": (
            lambda d: np.log(d["weight"]),
            functools.partial(_mesquite, names=columns),
            _flat,
        )
        for name, columns in {
            "logva": ("volume", "area"),
            "logvas": ("volume", "area", "shape", "height", "density"),
            "logvash": ("volume", "area", "shape", "height"),
        }.items()
    },
    "mesquite-logmesquite_logvolume": (
        lambda d: np.log(d["weight"]),
        lambda d: _mesquite(d, ["volume"])[:1],
        _flat,
    ),
    **{
        f"nes{year}-nes": (
            "partyid7",
            lambda d: [
                *(d[name] for name in _NES[0]),
                *(1.0 * (d["age_discrete"] == level) for level in (2, 3, 4)),
                *(d[name] for name in _NES[1]),
            ],
            _flat,
        )
        for year in range(1972, 2001, 4)
    },
    "sblrc-blr": ("y", None, _normal),
    "sblri-blr": ("y", None, _normal),
}


def _database() -> Path:
    folder = os.environ.get("TALLMC_POSTERIORDB")
    if not folder:
        pytest.skip("needs a clone of stan-dev/posteriordb, its folder in TALLMC_POSTERIORDB")
    return Path(folder) / "posterior_database"


def _read(path: Path):
    with zipfile.ZipFile(path.with_suffix(".json.zip")) as archive:
        return json.loads(archive.read(path.name + ".json"))


def _posterior(data, response, columns, log_prior):
    """A linear regression by automatic differentiation, columns scaled for the sampler."""
    y = response(data) if callable(response) else data[response]
    X = data["X"] if columns is None else np.column_stack([np.ones(len(y)), *columns(data)])
    # θ = Rβ: the QR decomposition takes correlations out, and changes a flat prior by a constant.
    _, R = np.linalg.qr(X)
    inverse = jnp.asarray(np.linalg.inv(R) * np.sqrt(len(y)))
    start = np.linalg.lstsq(X, y, rcond=None)[0]
    scale = np.std(y - X @ start)
    init = {"theta": np.linalg.solve(np.asarray(inverse), start), "sigma": scale}

    def log_likelihood(params, row):
        return stats.norm.logpdf(row[1], row[0] @ (inverse @ params["theta"]), params["sigma"])

    posterior = tallmc.Posterior(
        log_likelihood=log_likelihood,
        log_prior=lambda params: log_prior(inverse @ params["theta"], params["sigma"]),
        data=(X, y),
        init=init,
        transforms={"sigma": "positive"},
    )
    return posterior, np.asarray(inverse)


def _z_scores(ours, theirs):
    """Of the means and of the mean squares, by the effective draws of both: (chains, draws)."""
    centre, unit = theirs.mean(), theirs.std()
    scores = []
    for power in (1, 2):
        one, other = (((values - centre) / unit) ** power for values in (ours, theirs))
        error = sum(
            values.var() / float(tallmc.diagnose.ess(values[..., None]).min())
            for values in (one, other)
        )
        scores.append((one.mean() - other.mean()) / np.sqrt(error))
    return scores


@pytest.mark.parametrize("name", POSTERIORS)
def test_draws_agree_with_the_reference_draws_of_posteriordb(name):
    database = _database()
    found = _read(database / "data" / "data" / name.partition("-")[0])
    data = {key: np.asarray(value, float) for key, value in found.items()}
    posterior, inverse = _posterior(data, *POSTERIORS[name])
    draws = tallmc.sample(posterior, seed=0, progress=False)
    assert draws.report.trusted, draws.report
    folder = database / "reference_posteriors" / "draws" / "draws"
    chains = _read(folder / name)
    reference = {key: np.array([chain[key] for chain in chains]) for key in chains[0]}
    beta = np.asarray(draws.params["theta"]) @ inverse.T
    ours = [beta[..., j] for j in range(beta.shape[-1])] + [np.asarray(draws.params["sigma"])]
    assert len(ours) == len(reference)
    scores = [_z_scores(a, b) for a, b in zip(ours, reference.values(), strict=True)]
    assert np.abs(scores).max() < 4.6, dict(zip(reference, scores, strict=True))


# Comparison: elpd by ArviZ from the reference draws, and the evidence by importance sampling in
# NumPy, whose proposal is a t distribution with the moments of the reference draws.

_PROPOSALS, _DEGREES = 20_000, 7


def _unit_information(beta, sigma, start, covariance):
    """A proper prior with about the information of one row, for posteriors with a flat one."""
    of_beta = stats.multivariate_normal.logpdf(beta, start, covariance)
    return of_beta + stats.cauchy.logpdf(sigma, 0.0, 2.5) + jnp.log(2.0)


def _diamonds(beta, sigma):
    of_beta = stats.t.logpdf(beta[0], 3, 8.0, 10.0) + stats.norm.logpdf(beta[1:]).sum()
    return of_beta + stats.t.logpdf(sigma, 3, 0.0, 10.0) + jnp.log(2.0)


def _comparable(name):
    """Columns, response and reference draws of (β, log σ) of a posterior, and a proper prior."""
    database = _database()
    found = _read(database / "data" / "data" / name.partition("-")[0])
    chains = _read(database / "reference_posteriors" / "draws" / "draws" / name)
    keys = [key for key in chains[0] if key != "b_Intercept"]
    reference = np.concatenate([np.array([chain[key] for key in keys]) for chain in chains], axis=1)
    if name == "diamonds-diamonds":
        X, y = np.array(found["X"], float), np.array(found["Y"], float)
        X[:, 1:] -= X[:, 1:].mean(axis=0)
        order = [keys.index("Intercept"), *range(X.shape[1] - 1), keys.index("sigma")]
        reference, prior = reference[order], _diamonds
    else:
        data = {key: np.asarray(value, float) for key, value in found.items()}
        response, columns, _ = POSTERIORS[name]
        y = response(data) if callable(response) else data[response]
        X = np.column_stack([np.ones(len(y)), *columns(data)])
        start = np.linalg.lstsq(X, y, rcond=None)[0]
        covariance = len(y) * np.var(y - X @ start) * np.linalg.inv(X.T @ X)
        prior = functools.partial(_unit_information, start=start, covariance=covariance)
    reference[-1] = np.log(reference[-1])
    return X, y, reference.T, prior


@pytest.mark.parametrize(
    "name",
    [
        "diamonds-diamonds",
        "earnings-logearn_interaction",
        "kidiq-kidscore_interaction",
        "nes1996-nes",
    ],
)
def test_elpd_and_evidence_are_those_of_arviz_and_of_importance_sampling(name):
    import arviz_base
    import arviz_stats
    import scipy.special
    import scipy.stats

    X, y, reference, prior = _comparable(name)
    _, R = np.linalg.qr(X)
    inverse = np.linalg.inv(R) * np.sqrt(len(y))
    start = np.linalg.lstsq(X, y, rcond=None)[0]

    def log_likelihood(params, row):
        return stats.norm.logpdf(row[1], row[0] @ (inverse @ params["theta"]), params["sigma"])

    def log_prior(params):  # of θ, where β = `inverse` θ
        return prior(inverse @ params["theta"], params["sigma"]) + np.linalg.slogdet(inverse)[1]

    posterior = tallmc.Posterior(
        log_likelihood=log_likelihood,
        log_prior=log_prior,
        data=(X, y),
        init={"theta": np.linalg.solve(inverse, start), "sigma": np.std(y - X @ start)},
        transforms={"sigma": "positive"},
    )
    draws = tallmc.sample(posterior, seed=0, progress=False)
    ours = tallmc.diagnose.loo(draws, posterior, n=len(y))

    kept = reference[:: max(1, len(reference) // 4000)]
    pointwise = scipy.stats.norm.logpdf(y, kept[:, :-1] @ X.T, np.exp(kept[:, -1:]))
    tree = arviz_base.from_dict(
        {"posterior": {"s": kept[None, :, -1]}, "log_likelihood": {"y": pointwise[None]}}
    )
    theirs = arviz_stats.loo(tree, pointwise=True)
    rows = np.asarray(theirs.elpd_i)
    # A row's density has a relative Monte-Carlo error of about sd(log p)/√1,000 in both.
    error = np.sqrt(np.sum(pointwise.var(axis=0)) * 2 / 1000)
    assert abs(ours.elpd - theirs.elpd) < 4.6 * error + 0.02 * ours.p_loo
    assert abs(ours.se - theirs.se) < 0.01 * theirs.se
    assert np.corrcoef(ours.pointwise, rows)[0, 1] > 0.9999

    rng = np.random.default_rng(0)
    middle, factor = reference.mean(axis=0), np.linalg.cholesky(np.cov(reference.T))
    normal = rng.normal(size=(_PROPOSALS, len(middle)))
    stretch = np.sqrt(_DEGREES / rng.chisquare(_DEGREES, (_PROPOSALS, 1)))
    points = middle + stretch * normal @ factor.T
    proposal = scipy.stats.multivariate_t(middle, factor @ factor.T, _DEGREES).logpdf(points)
    squares = np.sum((y - points[:, :-1] @ X.T) ** 2, axis=1)
    target = -0.5 * squares * np.exp(-2 * points[:, -1])
    target -= len(y) * (points[:, -1] + 0.5 * np.log(2 * np.pi))
    of_prior = jax.vmap(lambda at: prior(at[:-1], jnp.exp(at[-1])) + at[-1])
    log_weights = target + np.asarray(of_prior(jnp.asarray(points))) - proposal
    expected = scipy.special.logsumexp(log_weights) - np.log(_PROPOSALS)
    weights = np.exp(log_weights - expected)
    found = tallmc.diagnose.evidence(draws, posterior)
    error = np.hypot(found.se, weights.std() / np.sqrt(_PROPOSALS))
    assert error < 0.2
    assert abs(found.log_evidence - expected) < 4.6 * error


def _statsmodels(name):
    """Data and results of a class of `statsmodels`, which come from R and Stata."""
    results = pytest.importorskip(
        "statsmodels.genmod.tests.results.results_glm", reason="needs statsmodels"
    )
    datasets = importlib.import_module("statsmodels.datasets")
    result = getattr(results, name)()
    offset = None
    if name == "Star98":
        data = datasets.star98.load()
        y, X = np.asarray(data.endog), np.asarray(data.exog)
    elif name.startswith("Cpunish"):
        data = datasets.cpunish.load()
        y, X = np.asarray(data.endog), np.asarray(data.exog, float)
        X[:, 3] = np.log(X[:, 3])
        if name == "Cpunish_offset":
            offset = np.full(len(y), np.log(100.0))
    else:
        y, X = np.asarray(result.endog, float), np.asarray(result.exog, float)[:, :-1]
    ones = np.ones((len(y), 1))
    X = np.hstack([ones, X] if name == "Cpunish_offset" else [X, ones])
    return X, y, offset, np.asarray(result.params), np.asarray(result.bse)


def _mode_and_sds(make, X, *rest, **options):
    """The mode under a flat prior, and the sds of the Laplace approximation there."""
    units = np.abs(X).max(axis=0)
    posterior = make(X / units, *rest, prior_variance=1e12, **options)
    anchor = tallmc.anchor.find_anchor(posterior)
    sds = np.sqrt(np.diag(anchor.covariance))
    units = np.repeat(units, posterior.dim // len(units))  # several classes: β has more columns
    d = len(units)
    return np.asarray(anchor.position)[:d] / units, sds[:d] / units


@pytest.mark.parametrize("name", ["Lbw", "Star98", "Cpunish", "Cpunish_offset", "CancerLog"])
def test_the_mode_under_a_flat_prior_is_the_estimate_of_statsmodels(name):
    X, y, offset, params, bse = _statsmodels(name)
    if name == "Star98":
        found, sds = _mode_and_sds(tallmc.models.binomial_regression, X, y[:, 0], y.sum(axis=1))
    else:
        make = {"Lbw": "logistic", "CancerLog": "gamma"}.get(name, "poisson")
        make = getattr(tallmc.models, f"{make}_regression")
        found, sds = _mode_and_sds(make, X, y, offset=offset)
    assert np.abs((found - params) / bse).max() < 1e-3
    if name != "CancerLog":  # statsmodels estimates the dispersion by another rule
        np.testing.assert_allclose(sds, bse, rtol=2e-3)


def _discrete(name):
    """Design, response, estimates and errors of a result of Stata in statsmodels' own tests."""
    results = pytest.importorskip(
        "statsmodels.discrete.tests.results.results_discrete", reason="needs statsmodels"
    )
    datasets = importlib.import_module("statsmodels.datasets")
    holder, data = {
        "logit": (results.Spector, datasets.spector),
        "probit": (results.Spector, datasets.spector),
        "mnlogit_basezero": (results.Anes, datasets.anes96),
        "poisson": (results.RandHIE, datasets.randhie),
        "negativebinomial_nb2_bfgs": (results.RandHIE, datasets.randhie),
    }[name]
    result, data = getattr(holder, name), data.load()
    if callable(result):
        result = result()
    X = np.column_stack([np.asarray(data.exog, float), np.ones(len(data.exog))])
    return X, np.asarray(data.endog), np.asarray(result.params), np.asarray(result.bse)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("logit", "logistic"),
        ("probit", "probit"),
        ("mnlogit_basezero", "softmax"),
        ("poisson", "poisson"),
        ("negativebinomial_nb2_bfgs", "negative_binomial"),
    ],
)
def test_the_mode_under_a_flat_prior_is_the_estimate_of_discrete_models(name, model):
    X, y, params, bse = _discrete(name)
    found, sds = _mode_and_sds(getattr(tallmc.models, f"{model}_regression"), X, y)
    params, bse = params.ravel()[: len(found)], bse.ravel()[: len(found)]
    assert np.abs((found - params) / bse).max() < 1e-3
    if model != "negative_binomial":  # statsmodels itself agrees with these errors to 3 digits only
        np.testing.assert_allclose(sds, bse, rtol=2e-3)


def test_weights_count_rows_as_the_frequency_weights_of_stata_do():
    weighted = pytest.importorskip(
        "statsmodels.genmod.tests.results.results_glm_poisson_weights", reason="needs statsmodels"
    ).results_poisson_fweight_nonrobust
    X, y, *_ = _statsmodels("Cpunish")
    weights = np.array([1, 1, 1, 2, 2, 2, 3, 3, 3, 1, 1, 1, 2, 2, 2, 3, 3])
    found, sds = _mode_and_sds(tallmc.models.poisson_regression, X, y, weights=weights)
    assert np.abs((found - weighted.params) / weighted.bse).max() < 1e-3
    np.testing.assert_allclose(sds, weighted.bse, rtol=2e-3)


def test_the_mode_under_a_flat_prior_is_the_estimate_of_glum():
    glum = pytest.importorskip("glum", reason="needs glum")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50_000, 4)) @ rng.normal(size=(4, 4))
    exposure = rng.uniform(0.1, 1.0, len(X))
    y = rng.poisson(exposure * np.exp(X @ [0.3, -0.2, 0.1, 0.0] - 1.0))
    theirs = glum.GeneralizedLinearRegressor(family="poisson", alpha=0, gradient_tol=1e-9)
    theirs.fit(X, y, offset=np.log(exposure))
    design = np.column_stack([np.ones(len(X)), X])
    found, sds = _mode_and_sds(tallmc.models.poisson_regression, design, y, offset=np.log(exposure))
    assert np.abs((found - [theirs.intercept_, *theirs.coef_]) / sds).max() < 1e-3


# Golden files of glum: penalised estimates of simulated tables. A penalty α‖β‖²/2 beside the mean
# deviance is a normal prior with precision αΣw, and the intercept is free. The files of gamma and
# Tweedie fits do not apply: their dispersion is 1.


@functools.cache
def _golden():
    folder = os.environ.get("TALLMC_GLUM")
    if not folder:
        pytest.skip("needs a clone of Quantco/glum, its folder in TALLMC_GLUM")
    pytest.importorskip("glum", reason="needs glum")
    path = Path(folder) / "glum_benchmarks" / "data" / "simulated_glm.py"
    spec = importlib.util.spec_from_file_location("simulated_glm", path)
    simulated = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(simulated)
    golden = Path(folder) / "tests" / "glm" / "golden_master" / "simulation_gm.json"
    return simulated.simulate_mixed_data, json.loads(golden.read_text(encoding="utf-8"))


@pytest.mark.parametrize("offset", ["", "_offset"])
@pytest.mark.parametrize("weights", ["", "_weights"])
@pytest.mark.parametrize(
    ("penalty", "alpha"),
    [
        ("regularization", 1.0),
        ("half-regularization", 0.5),
        ("fit_intercept", 1.0),
        ("variable_p2", 1.0),
    ],
)
@pytest.mark.parametrize("family", ["normal", "binomial", "poisson"])
def test_the_mode_is_the_estimate_of_glums_golden_files(family, penalty, alpha, weights, offset):
    simulate, golden = _golden()
    link = {"normal": "identity", "binomial": "logit", "poisson": "log"}[family]
    data = simulate(family=family, link=link, categorical_levels=10)
    expected = golden[family][penalty + weights + offset]
    X, y = data["X"].to_numpy(float), np.asarray(data["y"], float)
    options = {"offset": data["offset"]} if offset else {}
    options |= {"weights": data["sample_weight"]} if weights else {}
    mixing = np.eye(X.shape[1])
    if penalty == "variable_p2":  # a penalty βᵀPβ = ‖Lᵀβ‖²
        random = np.random.default_rng(1).uniform(size=mixing.shape) - 0.5
        mixing = np.linalg.inv(np.linalg.cholesky(random.T @ random)).T
    design = X @ mixing
    precision = alpha * np.sum(options.get("weights", np.ones(len(y))))
    variances = np.full(X.shape[1], 1 / precision)
    if penalty != "fit_intercept":
        design = np.column_stack([np.ones(len(y)), design])
        variances = np.append(1e12, variances)
    model = {"normal": "linear", "binomial": "logistic", "poisson": "poisson"}[family]
    make = getattr(tallmc.models, f"{model}_regression")
    if family == "normal":
        options["noise_variance"] = 1.0
    anchor = tallmc.anchor.find_anchor(make(design, y, prior_variance=variances, **options))
    expected = np.asarray(expected["coef_"])
    if penalty != "fit_intercept":
        expected = np.append(golden[family][penalty + weights + offset]["intercept_"], expected)
        mixing = scipy.linalg.block_diag(1.0, mixing)
    sds = np.sqrt(np.diag(mixing @ np.asarray(anchor.covariance) @ mixing.T))
    assert np.abs((mixing @ anchor.position - expected) / sds).max() < 2e-3


# Formulas of Bambi's tests, against the design of formulae, which Bambi uses. The names of columns
# are theirs, the table is simulated. Left out are formulas whose response is a function (`prop`,
# `censored`, …) or text, functions of other names and arguments of theirs, formulas without a
# column, and terms of two groups.

_CATEGORIES = re.compile(
    "age_grp|batch|BMI|binary_cat|cat[245]|categorical[12]|city|fourcats|g|g1|g2|group|q|race|s|sex"
    "|site|source|subj|[Ss]ubject|threecats"
)
_FUNCTIONS = frozenset({"C", "offset", "np", "log"})


def _bambi_formulas():
    folder = os.environ.get("TALLMC_BAMBI")
    if not folder:
        return [pytest.param("", marks=pytest.mark.skip(reason="needs a clone of bambinos/bambi"))]
    found = set()
    for name in ("models", "model_construction", "priors"):
        tests = Path(folder, "tests", f"test_{name}.py").read_text(encoding="utf-8")
        found |= set(re.findall(r'"(\w+ ~ [^"]*)"', tests))
    cells = "(threecats:fourcats|site)"
    differs = pytest.mark.xfail(reason="formulae has four of the eight cells", strict=True)
    return [
        pytest.param(formula, marks=[differs] if cells in formula else [])
        for formula in sorted(found)
        if _applies(formula)
    ]


def _applies(formula):
    response, terms = formula.split(" ~ ")
    called = set(re.findall(r"(\w+)\(", terms)) | set(re.findall(r"(\w+)\.", terms))
    two_groups = re.search(r"\|[^)]*\+", terms)
    left_out = terms in ("", "0") or two_groups or "=" in terms or _CATEGORIES.fullmatch(response)
    return called <= _FUNCTIONS and not left_out


def _columns(matrix):
    return set(map(tuple, np.round(np.asarray(matrix, float).T, 9).tolist()))


@pytest.mark.parametrize("formula", _bambi_formulas())
def test_the_design_of_a_formula_is_that_of_bambi(formula):
    formulae = pytest.importorskip("formulae", reason="needs formulae")
    rng = np.random.default_rng(0)
    names = sorted(set(re.findall(r"[A-Za-z_]\w*", formula)) - _FUNCTIONS)
    table = pd.DataFrame(
        {
            name: rng.choice(list("uvw"), 200)
            if _CATEGORIES.fullmatch(name)
            else rng.uniform(1, 2, 200)
            for name in names
        }
    )
    theirs = formulae.design_matrices(formula, table)
    ours = make_design(
        read_table(table),
        regression_model(formula, family="gaussian", standardise=False),
        "number",
        "float64",
    )
    terms = theirs.common.terms if theirs.common is not None else {}
    added = [theirs.common[name] for name in terms if name.startswith("offset(")]
    common = [theirs.common[name] for name in terms if not name.startswith("offset(")]
    assert _columns(ours.x) == set().union(*map(_columns, common))
    assert ours.x.shape[1] == sum(np.atleast_2d(columns.T).shape[0] for columns in common)
    if added:
        np.testing.assert_allclose(ours.offset, np.sum(added, axis=0).ravel(), rtol=1e-12)
    grouped = set()
    for group in ours.groups:
        member = np.eye(group.codes.max() + 1)[group.codes]
        for column in group.x.T:
            grouped |= _columns(member * column[:, None])
    names = theirs.group.terms if theirs.group is not None else {}
    assert grouped == set().union(*(_columns(theirs.group[name].toarray()) for name in names))


def test_functions_of_arviz_take_the_draws_and_agree_with_the_summary():
    arviz_stats = pytest.importorskip("arviz_stats")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=2_000), "g": rng.choice(list("abc"), 2_000)})
    table["y"] = rng.poisson(np.exp(0.3 * table["x"]))
    draws = tallmc.fit("y ~ x + g", table, family="poisson", seed=0, progress=False)
    tree = draws.to_datatree(log_likelihood=table, posterior_predictive=table)
    ours = draws.summary()
    theirs = arviz_stats.summary(tree, round_to="none")
    np.testing.assert_allclose(theirs["mean"], ours["mean"], rtol=1e-6)
    np.testing.assert_allclose(theirs["ess_bulk"], ours["ess_bulk"], rtol=1e-6)
    for name in ("ess", "rhat", "mcse", "hdi", "eti", "mode", "kde", "histogram"):
        assert getattr(arviz_stats, name)(tree) is not None, name
    assert np.isfinite(arviz_stats.loo(tree).elpd)
    assert arviz_stats.metrics(tree)[0] >= 0
