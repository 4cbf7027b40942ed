"""Where the search for the mode starts, from regressions on some of the rows.

A Newton search from zero fails where f is not convex, as for outliers, or needs hundreds of passes
where e^z is far from the responses. Least squares on a response that is linear in z ends close to
the mode. It costs one regression on at most a few tens of thousands of rows, in float64 on the
host.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .design import RegressionData
from .observations import Observations

START_MAX_DIM = 500
"""Newton's limit in `laplace`; L-BFGS needs no positive definite Hessian."""
_START_ROWS = 20_000
_START_ROWS_PER_COLUMN = 20
_LEAST_EIGENVALUE = 1e-10
_ROBUST_ROUNDS = 30
_ROBUST_DEGREES = 4.0
_NORMAL_QUARTILE = 0.6744897501960817


class StartingPoint(NamedTuple):
    """The common coefficients, and the parameters that all rows share."""

    beta: Float[np.ndarray, " c"]
    shared: tuple[float, ...]


def chosen_rows(data: RegressionData) -> Int[np.ndarray, " n"]:
    """The numbers of some of the rows, or of all if there are few."""
    n_rows = data.rows.n_rows
    n = min(n_rows, max(_START_ROWS, _START_ROWS_PER_COLUMN * data.n_columns))
    if n == n_rows:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n_rows, n, replace=False))


def least_squares(
    rows: Observations, response: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, " n"]]:
    """The weighted regression of a response minus the offsets, and its residuals."""
    y = response if rows.offset is None else response - rows.offset
    x = np.asarray(rows.x)
    size = np.sqrt(np.maximum(weights @ x**2, np.finfo(float).tiny))
    scaled = x / size
    gram = (scaled * weights[:, None]).T @ scaled
    products = scaled.T @ (weights * y)
    beta = np.linalg.lstsq(gram, products, rcond=_LEAST_EIGENVALUE)[0] / size
    return beta, y - x @ beta


def row_weights(rows: Observations) -> Float[np.ndarray, " n"]:
    """The weights of the rows; ones if there are none."""
    return np.ones(len(rows.y)) if rows.weight is None else np.asarray(rows.weight)


def robust_regression(rows: Observations) -> tuple[Float[np.ndarray, " c"], float]:
    """Coefficients and scale with t₄ noise, by iterated least squares."""
    weights = row_weights(rows)
    beta, residuals = least_squares(rows, np.asarray(rows.y), weights)
    scale = _scale_of(residuals)
    for _ in range(_ROBUST_ROUNDS):
        if scale == 0:
            break
        each = (_ROBUST_DEGREES + 1) / (_ROBUST_DEGREES + (residuals / scale) ** 2)
        beta, residuals = least_squares(rows, np.asarray(rows.y), weights * each)
        scale = _scale_of(residuals)
    return beta, scale


def _scale_of(residuals: Float[np.ndarray, " n"]) -> float:
    """The sd of normal noise with the same median of |r|."""
    return float(np.median(np.abs(residuals)) / _NORMAL_QUARTILE)
