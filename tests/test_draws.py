"""Draws as an ArviZ DataTree and as a summary."""

import numpy as np
import pytest

import tallmc
from problems import exact_posterior, linear


@pytest.fixture(scope="module")
def draws():
    return tallmc.sample(linear(), tallmc.mala(0.1), chains=4, draws=2000, burn_in=100, seed=3)


def test_datatree_has_the_arviz_schema(draws):
    tree = draws.to_datatree(labels={"beta": ["intercept", "slope"]})
    assert set(tree.children) == {"posterior", "sample_stats"}
    beta = tree["posterior"]["beta"]
    assert beta.dims == ("chain", "draw", "beta_dim")
    assert list(beta["beta_dim"].values) == ["intercept", "slope"]
    np.testing.assert_array_equal(beta.values, draws.positions)
    stats = tree["sample_stats"]
    assert {"step_size", "batch_size", "n_row_evals", "acceptance_rate"} == set(stats.data_vars)
    assert "lp" not in stats
    assert tree.attrs["seed"] == 3
    assert "MALA" in tree.attrs["method"]
    assert tree.attrs["n_row_evals"] == draws.n_row_evals
    assert tree.attrs["outcomes"] == ["ok"] * 4


def test_datatree_survives_a_file(draws, tmp_path):
    import xarray as xr

    draws.to_datatree().to_netcdf(tmp_path / "draws.nc")
    with xr.open_datatree(tmp_path / "draws.nc") as tree:
        np.testing.assert_array_equal(tree["posterior"]["beta"].values, draws.positions)


def test_summary_is_that_of_the_posterior(draws):
    table = draws.summary(labels={"beta": ["intercept", "slope"]})
    assert list(table.index) == ["beta[intercept]", "beta[slope]"]
    assert {
        "mean",
        "sd",
        "median",
        "q05",
        "q95",
        "ess_bulk",
        "ess_tail",
        "rhat",
        "mcse_mean",
        "mcse_sd",
    } == set(table.columns)
    mean, covariance = exact_posterior(linear())
    sd = np.sqrt(np.diag(covariance))
    assert (np.abs(table["mean"] - mean) / table["mcse_mean"]).max() < 4.6
    assert (np.abs(table["sd"] - sd) / table["mcse_sd"]).max() < 4.6
    np.testing.assert_allclose(table["q95"], mean + 1.6449 * sd, atol=0.1 * sd.max())
    np.testing.assert_allclose(
        table["q05"], np.quantile(draws.positions, 0.05, axis=(0, 1)), rtol=0.01
    )
    assert table["rhat"].max() < 1.01


def test_repr_says_what_it_is(draws):
    assert repr(draws).startswith("Draws(4 chains × 2000 draws × 2 parameters;")
