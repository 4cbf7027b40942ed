"""How the error of the average of a chain depends on the number of draws.

For a function φ of the position with expectation φ̄ under the posterior,

    φ̂_T = (1/T) Σ_{t≤T} φ(θ_t),    bias E φ̂_T − φ̄,    mean squared error E (φ̂_T − φ̄)².

Expectations are means over independent chains. For SGLD and its kin the bias does not vanish as T
grows: it tends to a multiple of a power of the step size h, and the mean squared error to its
square, while the variance falls as 1/T. Runs at several h show the power.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float, Int

from .._core.arrays import check_numeric
from .._core.errors import InvalidInput, check_int, check_number
from .._core.statistics import mean_autocovariances


def autocorrelation(values: ArrayLike, lags: int = 100) -> Float[np.ndarray, "chains lags"]:
    """Autocorrelation of each chain at the lags 0, 1, …, `lags`.

    **Arguments:**

    - `values`: a quantity of each draw, of shape (chains, draws).
    - `lags`: the largest lag, less than the number of draws of a chain.

    **Returns:** one row per chain, one column per lag. The first column is 1. A chain that does not
    move has NaN.
    """
    checked = _chains(values)
    lags = check_int("lags", lags, 0, checked.shape[1] - 1)
    centred = checked - checked.mean(axis=1, keepdims=True)
    covariances = np.array([mean_autocovariances(chain[None])[: lags + 1] for chain in centred])
    moves = np.ptp(checked, axis=1) > 0
    variances = np.where(moves, covariances[:, 0], np.nan)
    return covariances / variances[:, None]


def _chains(values: ArrayLike) -> Float[np.ndarray, "chains draws"]:
    checked = np.asarray(check_numeric("values", values), np.float64)
    if checked.ndim != 2:
        cure = "For one coordinate: draws.positions[:, :, j]."
        raise InvalidInput("values", "have shape (chains, draws)", f"shape {checked.shape}", cure)
    if not np.isfinite(checked).all():
        raise InvalidInput("values", "be finite", "NaN or infinity")
    return checked


class AverageErrors(NamedTuple):
    """Errors of averages over the first T draws, one entry per T."""

    lengths: Int[np.ndarray, " k"]
    """T, the number of draws in the average."""
    bias: Float[np.ndarray, " k"]
    """Mean over chains of the average minus the true value."""
    bias_error: Float[np.ndarray, " k"]
    """Standard error of the bias."""
    mean_square: Float[np.ndarray, " k"]
    """Mean over chains of the squared error."""


def average_errors(
    values: ArrayLike, truth: float, at: Sequence[int] | None = None
) -> AverageErrors:
    """Bias and mean squared error of averages over chains, against their length.

    **Arguments:**

    - `values`: φ of each draw, of shape (chains, draws), with at least two independent chains.
    - `truth`: the expectation of φ under the posterior.
    - `at`: the lengths T; 20 lengths with equal ratios by default.
    """
    checked = _chains(values)
    if checked.shape[0] < 2 or not checked.shape[1]:
        rule = "have shape (chains, draws) with at least two chains"
        raise InvalidInput("values", rule, f"shape {checked.shape}")
    truth, n = check_number("truth", truth), checked.shape[1]
    lengths = np.unique(np.geomspace(1, n, 20).round() if at is None else at).astype(int)
    if not len(lengths) or lengths[0] < 1 or lengths[-1] > n:
        raise InvalidInput("at", f"have lengths from 1 to {n}", str(list(lengths)))
    errors = np.cumsum(checked - truth, axis=1)[:, lengths - 1] / lengths
    return AverageErrors(
        lengths,
        errors.mean(axis=0),
        errors.std(axis=0, ddof=1) / np.sqrt(len(errors)),
        (errors**2).mean(axis=0),
    )
