"""Agreement with full-data NUTS on real and simulated data.

reference/README.md describes how the reference results were made.
"""

import numpy as np
import pytest

import tallmc
from problems import slow_after


def pima(shared):
    with np.load(shared / "data" / "pima.npz", allow_pickle=False) as file:
        X, y = file["X"], file["y"]
    X = (X - X.mean(0)) / X.std(0)
    return np.c_[np.ones(len(y)), X], y


def review10(shared):
    """The simulation of nemeth-2021, section 6.1, with d = 10."""
    rng, n_rows, d = np.random.default_rng(2021), 100_000, 10
    S = np.eye(d)
    for i in range(d):
        for j in range(i):
            S[i, j] = S[j, i] = rng.uniform(-0.4, 0.4) ** abs(i - j)
    values, vectors = np.linalg.eigh(S)
    X = rng.normal(size=(n_rows, d)) @ (vectors * np.sqrt(np.maximum(values, 1e-6))).T
    theta = rng.normal(size=d)
    return X, (rng.random(n_rows) < 1 / (1 + np.exp(-X @ theta))).astype(float)


def errors(draws, reference):
    """Mean errors in posterior sds and relative sd errors, and the Monte-Carlo errors of both."""
    table = draws.summary()
    mean = (table["mean"] - reference["mean"]) / reference["sd"]
    spread = table["sd"] / reference["sd"] - 1
    mean_error = np.hypot(table["mcse_mean"] / reference["sd"], 1 / np.sqrt(reference["min_ess"]))
    sd_error = np.hypot(table["mcse_sd"] / reference["sd"], 1 / np.sqrt(2 * reference["min_ess"]))
    return mean, mean_error, spread, sd_error


@pytest.mark.slow
def test_mala_agrees_with_nuts_on_pima(shared):
    X, y = pima(shared)
    posterior = tallmc.models.logistic_regression(X, y, prior_variance=10.0)
    reference = np.load(shared / "reference" / "pima.npz", allow_pickle=False)
    draws = tallmc.sample(
        posterior, tallmc.methods.mala(0.012), chains=8, n_draws=10_000, burn_in=1000, seed=0
    )
    mean, mean_error, spread, sd_error = errors(draws, reference)
    assert draws.summary()["rhat"].max() < 1.01
    assert (np.abs(mean) / mean_error).max() < 4.6
    assert (np.abs(spread) / sd_error).max() < 4.6


@pytest.mark.parametrize("name", slow_after(1, ["pima", "review10"]))
def test_laplace_agrees_with_the_reference_anchor(name, shared):
    X, y = {"pima": pima, "review10": review10}[name](shared)
    reference = np.load(shared / "reference" / f"{name}.npz", allow_pickle=False)
    anchor = tallmc.anchor.find_anchor(tallmc.models.logistic_regression(X, y, prior_variance=10.0))
    sd = np.sqrt(np.diag(reference["laplace_cov"]))
    assert (np.abs(np.asarray(anchor.position) - reference["mode"]) / sd).max() < 1e-3
    np.testing.assert_allclose(
        anchor.covariance, reference["laplace_cov"], atol=1e-3 * (sd**2).max()
    )


@pytest.mark.parametrize("method", slow_after(0, ["sgld_cv_ps", "sgld_cv", "asgld_cv_ps"]))
def test_control_variates_agree_with_nuts_on_review10(method, shared):
    """With this step size and these sizes, the variance is inflated by less than 2 %."""
    X, y = review10(shared)
    posterior = tallmc.models.logistic_regression(X.astype(np.float32), y, prior_variance=10.0)
    reference = np.load(shared / "reference" / "review10.npz", allow_pickle=False)
    anchor = tallmc.anchor.find_anchor(posterior)
    step_size = 0.05 / float(np.linalg.eigvalsh(np.asarray(anchor.hessian, float))[-1])
    make = tallmc.methods.METHODS[method].make
    chosen = make(step_size) if method.startswith("a") else make(step_size, batch_size=200)
    draws = tallmc.sample(
        posterior, chosen, chains=32, n_draws=4000, burn_in=400, seed=1, anchor=anchor
    )
    mean, mean_error, spread, sd_error = errors(draws, reference)
    assert (np.abs(mean) / mean_error).max() < 4.6
    inflation = 0.05 / 4 if method != "asgld_cv_ps" else 0.05 / 4 + 0.01
    assert (np.maximum(spread - inflation, -spread) / sd_error).max() < 4.6
