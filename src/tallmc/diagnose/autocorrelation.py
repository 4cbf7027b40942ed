"""Autocorrelation of draws: how slowly a chain forgets where it was."""

from __future__ import annotations

import numpy as np
from jaxtyping import ArrayLike, Float

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput, check_int
from ..statistics.autocovariance import mean_autocovariances


def autocorrelation(values: ArrayLike, lags: int = 100) -> Float[np.ndarray, "chains lags"]:
    """Autocorrelation of each chain at the lags 0, 1, …, `lags`.

    **Arguments:**

    - `values`: a quantity of each draw, of shape (chains, draws).
    - `lags`: the largest lag, less than the number of draws of a chain.

    **Returns:** one row per chain, one column per lag. The first column is 1. A chain that does not
    move has NaN.

    **Raises:** `InvalidInput` if the shape is wrong, a value is not finite or there are too few
    draws.

    >>> import numpy as np
    >>> noise = np.random.default_rng(0).normal(size=(2, 5000))
    >>> autocorrelation(noise[:, 1:] + noise[:, :-1], lags=3).round(1)
    array([[1. , 0.5, 0. , 0. ],
           [1. , 0.5, 0. , 0. ]])
    """
    checked = np.asarray(check_numeric("values", values), np.float64)
    if checked.ndim != 2:
        cure = "For one coordinate: draws.positions[:, :, j]."
        raise InvalidInput("values", "have shape (chains, draws)", f"shape {checked.shape}", cure)
    if not np.isfinite(checked).all():
        raise InvalidInput("values", "be finite", "NaN or infinity")
    lags = check_int("lags", lags, 0, checked.shape[1] - 1)
    centred = checked - checked.mean(axis=1, keepdims=True)
    covariances = np.array([mean_autocovariances(chain[None])[: lags + 1] for chain in centred])
    moves = np.ptp(checked, axis=1) > 0
    variances = np.where(moves, covariances[:, 0], np.nan)
    return covariances / variances[:, None]
