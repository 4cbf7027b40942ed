"""Draws as an ArviZ DataTree and as a summary."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import exact_posterior, linear


@pytest.fixture(scope="module")
def draws():
    return tallmc.sample(
        linear(), tallmc.methods.mala(0.1), chains=4, n_draws=2000, burn_in=100, seed=3
    )


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
    assert repr(draws).startswith("Draws(4 chains × 2,000 draws × 2 parameters;")


DECREASING = tallmc.schedule.Polynomial(0.3, 1.0, 0.4)


@pytest.fixture(scope="module")
def decreasing():
    return tallmc.sample(
        linear(), tallmc.methods.ula(DECREASING), chains=3, n_draws=500, burn_in=20, seed=1
    )


def test_draws_of_decreasing_steps_are_weighted_by_the_step_size(decreasing):
    steps = np.asarray(DECREASING(jnp.arange(20, 520)))
    np.testing.assert_allclose(decreasing.weights, np.tile(steps / steps.mean(), (3, 1)))
    tree = decreasing.to_datatree()
    np.testing.assert_array_equal(tree["sample_stats"]["weight"], decreasing.weights)
    assert "sample_stats.weight" in tree.attrs["weights"]


def test_summary_of_decreasing_steps_is_the_weighted_formula(decreasing):
    table, w = decreasing.summary(), decreasing.weights.ravel() / decreasing.weights.sum()
    flat = decreasing.positions.reshape(-1, 2)
    mean = w @ flat
    sd = np.sqrt(w @ (flat - mean) ** 2 / (1 - w @ w))
    np.testing.assert_allclose(table["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(table["sd"], sd, rtol=1e-12)
    for column, level in (("q05", 0.05), ("median", 0.5), ("q95", 0.95)):
        for j in range(2):
            below, order = table[column].iloc[j], np.argsort(flat[:, j])
            reached = np.searchsorted(np.cumsum(w[order]), level)
            assert below == flat[order[reached], j]
    unweighted = dataclasses.replace(decreasing, sample_stats={}).summary()
    kish = 1 / (len(w) * w @ w)
    assert kish < 0.95
    np.testing.assert_allclose(table["ess_bulk"], kish * unweighted["ess_bulk"])
    np.testing.assert_allclose(table["ess_tail"], kish * unweighted["ess_tail"])
    error = unweighted["mcse_mean"] * sd / unweighted["sd"] / np.sqrt(kish)
    np.testing.assert_allclose(table["mcse_mean"], error)


def test_weights_reduce_the_variance_of_an_average_over_decreasing_steps():
    """Exactly, on N(0, 1): θ' = aθ + √ε η with a = 1 − ε/2 gives all covariances of the draws."""
    numbers = np.arange(2000)
    steps = np.asarray(tallmc.schedule.Polynomial(0.5, 1.0, 0.5)(jnp.asarray(numbers)))
    variances = np.zeros(len(steps) + 1)
    for t, step in enumerate(steps):
        variances[t + 1] = (1 - step / 2) ** 2 * variances[t] + step
    log_decay = np.cumsum(np.log(1 - steps / 2))
    earlier = np.minimum.outer(numbers, numbers)
    decay = np.exp(-np.abs(np.subtract.outer(log_decay, log_decay)))
    covariance = variances[1:][earlier] * decay
    of_average = lambda w: w @ covariance @ w / w.sum() ** 2
    assert of_average(steps) < 0.85 * of_average(np.ones(len(steps)))


@pytest.mark.parametrize(
    "method",
    [
        tallmc.methods.sgld(0.01, batch_size=3),
        tallmc.methods.sgld(tallmc.schedule.Cyclical(0.05, 10, 0.5), batch_size=3),
        tallmc.methods.mala(DECREASING),
    ],
    ids=["constant", "cyclical", "accept-step"],
)
def test_other_draws_count_the_same(method):
    draws = tallmc.sample(linear(), method, chains=2, n_draws=8, burn_in=0)
    assert draws.weights is None
    assert "weight" not in draws.to_datatree()["sample_stats"]
