"""Pareto's k: how heavy the right tail of some values is.

A generalised Pareto law is fitted to the largest values, as far as they exceed the others (Zhang
and Stephens, 2009), with the weak prior of Vehtari et al. (2024). The variance of the values is
infinite from k = 0.5 on, their mean from k = 1 on.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import ArrayLike, Float

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput

HEAVY_TAIL = 0.7  # a mean is unreliable above this k (Vehtari et al., 2024)
_FEWEST_VALUES = 25
_PRIOR_VALUES, _PRIOR_K = 10, 0.5


def pareto_k(values: ArrayLike) -> float:
    """Pareto's k of the right tail of independent values, the number that ArviZ computes.

    >>> round(pareto_k(np.random.default_rng(0).pareto(2.0, size=10_000)), 1)  # true k: 1/2
    0.5
    """
    ordered = np.sort(np.asarray(check_numeric("values", values), np.float64).ravel())
    if len(ordered) < _FEWEST_VALUES or not np.isfinite(ordered).all():
        raise InvalidInput(
            "values", f"be at least {_FEWEST_VALUES} finite numbers", f"{len(ordered)} values"
        )
    count = len(ordered)
    in_tail = int(3 * np.sqrt(count)) if count > 225 else count // 5
    tail = ordered[-in_tail:]
    cutoff = ordered[-in_tail - 1]
    if tail[-1] - tail[0] <= np.finfo(float).tiny:
        return -np.inf
    return _fitted_k(np.maximum(tail - cutoff, np.finfo(float).tiny))


def _fitted_k(excesses: Float[np.ndarray, " n"]) -> float:
    """k of the excesses, in ascending order: an average over a grid of scales b = −k/σ."""
    n = len(excesses)
    m = 30 + int(np.sqrt(n))
    scales = 1 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))
    scales = scales / (3 * excesses[int(n / 4 + 0.5) - 1]) + 1 / excesses[-1]
    k_of = np.log1p(-scales[:, None] * excesses).mean(axis=1)
    profile = n * (np.log(-scales / k_of) - k_of - 1)
    weights = np.exp(profile - profile.max())
    scale = np.sum(scales * weights) / np.sum(weights)
    k = np.log1p(-scale * excesses).mean()
    return float((n * k + _PRIOR_VALUES * _PRIOR_K) / (n + _PRIOR_VALUES))
