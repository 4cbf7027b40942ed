"""Posteriors of the data sets in the papers: easy ones with a reference, and hard ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tallmc

DATA = Path(os.environ.get("TALLMC_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
_TRAINING_ROWS = 435_759
_PRIOR_VARIANCE = 10.0


def covertype_rows() -> tuple[np.ndarray, np.ndarray]:
    """The design matrix, intercept first, and the class (1 to 7) of each training row."""
    with np.load(DATA / "covertype.npz") as file:
        x, y = file["X"].astype(float), file["y"]
    low, middle, high = np.percentile(x[:, :10], [25, 50, 75], axis=0)
    x[:, :10] = (x[:, :10] - middle) / (high - low)
    rows = np.random.default_rng(0).permutation(len(y))[:_TRAINING_ROWS]
    return np.c_[np.ones(len(rows)), x[rows]], y[rows]


def covertype(cover: int = 2, n_rows: int = _TRAINING_ROWS) -> tallmc.models.AbstractPosterior:
    """Logistic regression of one class against the others, on the first `n_rows` training rows.

    Class 4 has 0.47 % and class 5 has 1.6 % of the rows; some dummies then nearly separate.
    """
    x, y = (values[:n_rows] for values in covertype_rows())
    return tallmc.models.logistic_regression(x, y == cover, _PRIOR_VARIANCE)


def small(name: str) -> tallmc.models.AbstractPosterior:
    """`pima` or `parkinsons`, with an intercept and standardised columns."""
    with np.load(DATA / f"{name}.npz") as file:
        x, y = file["X"].astype(float), file["y"]
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return tallmc.models.logistic_regression(np.c_[np.ones(len(y)), x], y, _PRIOR_VARIANCE)


def review(dim: int) -> tallmc.models.AbstractPosterior:
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
    """Softmax regression of covertype's seven classes by automatic differentiation.

    Class 2 is the base; there are 330 coefficients.
    """
    x, y = (values[:n_rows] for values in covertype_rows())
    # Class 2, the most common, comes first.
    labels = np.where(y == 2, 0, np.where(y == 1, 1, y - 1)).astype(np.int32)
    init = {"beta": np.zeros((6, x.shape[1]))}
    return tallmc.Posterior(_softmax_log_likelihood, _normal_prior, (x, labels), init)


def student_t() -> tallmc.Posterior:
    """Regression of CASP's residue size with Student-t errors.

    The errors have four degrees of freedom and an unknown scale.
    """
    with np.load(DATA / "casp.npz") as file:
        x, y = file["X"].astype(float), file["y"].astype(float)
    x, y = (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std()
    data = (np.c_[np.ones(len(y)), x], y)
    init = {"beta": np.zeros(x.shape[1] + 1), "log_scale": 0.0}
    return tallmc.Posterior(_student_t_log_likelihood, _normal_prior, data, init)


def _softmax_log_likelihood(params: Any, row: Any) -> jax.Array:
    features, label = row
    scores = jnp.concatenate([jnp.zeros(1, features.dtype), params["beta"] @ features])
    return scores[label] - jax.nn.logsumexp(scores)


def _student_t_log_likelihood(params: Any, row: Any) -> jax.Array:
    features, response = row
    z = (response - features @ params["beta"]) * jnp.exp(-params["log_scale"])
    return -2.5 * jnp.log1p(z**2 / 4) - params["log_scale"]


def _normal_prior(params: Any) -> jax.Array:
    squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return -jnp.asarray(squares) / (2 * _PRIOR_VARIANCE)
