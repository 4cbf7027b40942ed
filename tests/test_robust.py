"""Robust errors are those of statsmodels, and draws that have them say so."""

import sys

import numpy as np
import pandas as pd
import pytest

import tallmc
from problems import laplace_draws, slow_after
from row_stores import stored_logistic
from tallmc.diagnose import evidence, robust

N = 600

# Standard errors of statsmodels 0.15.0: OLS, WLS, Logit and Poisson with cov_type="HC1", and with
# cov_type="cluster", cov_kwds={"groups": g}.
ERRORS = {
    "weighted": ([0.139612, 0.082261, 0.124047], [0.152922, 0.102229, 0.137588]),
    "logistic": ([0.178536, 0.080537, 0.102982], [0.204899, 0.082243, 0.114453]),
    "linear": ([0.133132, 0.077188, 0.11627], [0.144188, 0.098571, 0.128726]),
    "poisson": ([0.098023, 0.033252, 0.050866], [0.113415, 0.039036, 0.054992]),
}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(5)
    g, u = rng.integers(0, 60, N), rng.normal(size=60)
    a, b = rng.normal(size=N) + 0.7 * u[g], rng.uniform(0, 3, N)
    w = rng.uniform(0.5, 2, N).round(2)
    linear = 1 + 0.5 * a - b + u[g] + rng.normal(size=N) * (0.3 + b)
    logistic = (rng.random(N) < 1 / (1 + np.exp(-(0.3 * a + 0.8 * u[g])))) * 1
    poisson = rng.poisson(np.exp(0.4 * a + 0.5 * u[g] - 0.3))
    columns = {"g": g, "a": a, "b": b, "w": w}
    columns |= {"linear": linear, "logistic": logistic, "poisson": poisson}
    return pd.DataFrame(columns).round(6)


def posterior_of(name, table):
    x = np.column_stack([np.ones(N), table["a"], table["b"]])
    if name == "weighted":
        weights = table["w"].to_numpy()
        return tallmc.models.linear_regression(
            x, table["linear"], prior_variance=1e6, weights=weights
        )
    build = getattr(tallmc.models, f"{name}_regression")
    return build(x, table[name].astype(float), prior_variance=1e6)


@pytest.mark.parametrize("name", slow_after(2, list(ERRORS)))
def test_errors_are_those_of_statsmodels(name, table):
    posterior = posterior_of(name, table)
    draws = laplace_draws(posterior, draws=250)
    by_row, by_cluster = ERRORS[name]
    for cluster, expected in ((None, by_row), (table["g"], by_cluster)):
        found = robust(draws, posterior, cluster=cluster)
        means, errors = (getattr(found.positions, of)(axis=(0, 1))[:3] for of in ("mean", "std"))
        np.testing.assert_allclose(errors, expected, rtol=0.02)
        sds = draws.positions.std(axis=(0, 1))[:3]
        assert np.abs((means - draws.positions.mean(axis=(0, 1))[:3]) / sds).max() < 1e-3


def test_clusters_of_a_table_and_of_a_row_store(table, tmp_path, monkeypatch):
    draws = tallmc.fit(
        "logistic ~ a + b",
        table,
        family="bernoulli",
        method=tallmc.methods.mala(0.01),
        chains=2,
        n_draws=40,
        progress=False,
    )
    found = robust(draws, cluster="g")
    given = robust(draws, cluster=table["g"].astype(str).to_numpy())
    np.testing.assert_allclose(found.positions, given.positions, rtol=1e-5)
    for said in (str(found.report), repr(found.summary()), found.summary()._repr_html_()):
        assert "robust by g: sandwich covariance of 60 clusters" in said
    assert "robust" not in repr(draws.summary())
    np.testing.assert_array_equal(found.predict(table[:3]).n_draws, 80)
    with pytest.raises(tallmc.InvalidInput, match="not have robust errors already"):
        robust(found)
    lacking = table.assign(g=table["g"].astype(str).where(table["g"] != 1))
    with pytest.raises(tallmc.InvalidInput, match="have no missing labels"):
        robust(draws, lacking, cluster="g")
    found.save(tmp_path / "draws.nc")
    assert "60 clusters" in repr(tallmc.load(tmp_path / "draws.nc").summary())
    on_disk, in_memory = stored_logistic(tmp_path / "rows")
    some = laplace_draws(in_memory, draws=10)
    labels = np.arange(in_memory.n_rows) % 30
    pair = [robust(some, of, cluster=labels).positions for of in (on_disk, in_memory)]
    np.testing.assert_allclose(*pair, rtol=1e-3)
    monkeypatch.setattr(sys.modules[robust.__module__], "_MOST_STORED_LABELS", 0)
    with pytest.raises(tallmc.InvalidInput, match="that stored numbers tell apart; got numbers fr"):
        robust(some, on_disk, cluster=on_disk.rows.shards.manifest.response)
    with pytest.raises(tallmc.InvalidInput, match="draws with robust errors"):
        evidence(robust(some, in_memory), in_memory)


def test_bad_clusters_are_one_line(table):
    posterior = posterior_of("logistic", table)
    draws = laplace_draws(posterior, draws=10)
    for cluster, message in (
        (table["g"][:10], r"one label per row of the fit \(600\); got shape \(10,\)"),
        (np.zeros(N), "more labels than the model has parameters"),
        ("g", "one label per row, where rows are those of a posterior"),
        (np.where(table["g"] == 1, np.nan, 1.0), "no missing labels"),
    ):
        with pytest.raises(tallmc.InvalidInput, match=message):
            robust(draws, posterior, cluster=cluster)
    with pytest.raises(tallmc.InvalidInput, match="rows must be those of the draws"):
        robust(draws)


def test_scales_of_a_prior_have_no_robust_errors(table):
    method = tallmc.methods.sgld(1e-6, batch_size=8)
    short = {"method": method, "chains": 1, "n_draws": 30, "burn_in": 0, "progress": False}
    draws = tallmc.fit("logistic ~ a", table, family="bernoulli", prior="r2d2(0.5, 2)", **short)
    with pytest.raises(
        tallmc.InvalidInput, match=r"all occur in the rows; got .* horseshoe or r2d2"
    ):
        robust(draws)
