"""A logistic regression with the shape of covertype."""

from __future__ import annotations

import functools

import numpy as np

import tallmc

N_ROWS, DIM = 435_759, 55


@functools.cache
def covertype_shaped() -> tallmc.models.AbstractPosterior:
    """An intercept, ten quantitative columns, and 44 dummies, some of them rare."""
    rng = np.random.default_rng(0)
    dummies = np.zeros((N_ROWS, 44), np.float32)
    dummies[np.arange(N_ROWS), rng.choice(4, N_ROWS)] = 1
    dummies[np.arange(N_ROWS), 4 + rng.choice(40, N_ROWS, p=rng.dirichlet(np.full(40, 0.3)))] = 1
    x = np.concatenate(
        [np.ones((N_ROWS, 1)), rng.normal(size=(N_ROWS, 10)), dummies], axis=1
    ).astype(np.float32)
    y = rng.random(N_ROWS) < 1 / (1 + np.exp(-x @ rng.normal(0, 0.5, DIM)))
    return tallmc.models.logistic_regression(x, y, prior_variance=10.0)
