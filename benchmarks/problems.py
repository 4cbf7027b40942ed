"""Real posteriors, from the data that the papers use: easy ones with a reference, and hard ones."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import tallmc

DATA = Path(os.environ.get("TALLMC_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
_TRAINING_ROWS = 435_759
_PRIOR_VARIANCE = 10.0


def covertype_rows() -> tuple[np.ndarray, np.ndarray]:
    """The design matrix, intercept first, and the class 1 to 7 of each of the training rows."""
    with np.load(DATA / "covertype.npz") as file:
        x, y = file["X"].astype(float), file["y"]
    low, middle, high = np.percentile(x[:, :10], [25, 50, 75], axis=0)
    x[:, :10] = (x[:, :10] - middle) / (high - low)
    rows = np.random.default_rng(0).permutation(len(y))[:_TRAINING_ROWS]
    return np.c_[np.ones(len(rows)), x[rows]], y[rows]


def covertype(cover: int = 2) -> tallmc.AbstractPosterior:
    """Is it this class? Class 4 is 0.47 % and class 5 1.6 % of the rows; some dummies then nearly separate."""
    x, y = covertype_rows()
    return tallmc.models.logistic_regression(x, y == cover, _PRIOR_VARIANCE)


def small(name: str) -> tallmc.AbstractPosterior:
    """`pima` or `parkinsons`, columns standardised, intercept first."""
    with np.load(DATA / f"{name}.npz") as file:
        x, y = file["X"].astype(float), file["y"]
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return tallmc.models.logistic_regression(np.c_[np.ones(len(y)), x], y, _PRIOR_VARIANCE)


def review(dim: int) -> tallmc.AbstractPosterior:
    """The simulated logistic regression of nemeth-2021, section 6.1."""
    rng, n_rows = np.random.default_rng(2021), 100_000
    covariance = np.eye(dim)
    for i in range(dim):
        for j in range(i):
            covariance[i, j] = covariance[j, i] = rng.uniform(-0.4, 0.4) ** abs(i - j)
    values, vectors = np.linalg.eigh(covariance)
    x = rng.normal(size=(n_rows, dim)) @ (vectors * np.sqrt(np.maximum(values, 1e-6))).T
    truth = rng.normal(size=dim)
    y = rng.random(n_rows) < 1 / (1 + np.exp(-x @ truth))
    return tallmc.models.logistic_regression(x, y, _PRIOR_VARIANCE)


def softmax(n_rows: int = 20_000) -> tallmc.Posterior:
    """Softmax regression over covertype's seven classes, the second the base: 330 coefficients, by automatic differentiation."""
    x, y = (values[:n_rows] for values in covertype_rows())
    labels = np.where(y == 2, 0, np.where(y == 1, 1, y - 1)).astype(np.int32)  # class 2, the most common, comes first

    def log_likelihood(params, row):  # type: ignore[no-untyped-def]
        features, label = row
        scores = jnp.concatenate([jnp.zeros(1, features.dtype), params["beta"] @ features])
        return scores[label] - jax.nn.logsumexp(scores)

    init = {"beta": np.zeros((6, x.shape[1]))}
    return tallmc.Posterior(log_likelihood, _normal_prior, (x, labels), init)


def student_t() -> tallmc.Posterior:
    """Regression of CASP's residue size with Student-t errors of four degrees of freedom and an unknown scale."""
    with np.load(DATA / "casp.npz") as file:
        x, y = file["X"].astype(float), file["y"].astype(float)
    x, y = (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std()

    def log_likelihood(params, row):  # type: ignore[no-untyped-def]
        features, response = row
        z = (response - features @ params["beta"]) * jnp.exp(-params["log_scale"])
        return -2.5 * jnp.log1p(z**2 / 4) - params["log_scale"]

    init = {"beta": np.zeros(x.shape[1] + 1), "log_scale": 0.0}
    return tallmc.Posterior(log_likelihood, _normal_prior, (np.c_[np.ones(len(y)), x], y), init)


def _normal_prior(params) -> jax.Array:  # type: ignore[no-untyped-def]
    return -sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)) / (2 * _PRIOR_VARIANCE)
