"""Bulk ESS and R-hat from normal scores (Vehtari et al., 2021), one parameter at a time.

The numbers are those of ArviZ up to rounding; `tests/test_rank_diagnostics.py` compares them. ArviZ
takes four to ten times as long. It sorts the draws once per statistic, computes the same normal
quantiles for each parameter, and transforms each chain back from its spectrum.

Chains are split in halves, which are then treated as chains. The draws of a parameter are replaced
by normal scores z = Φ⁻¹((rank − 3/8)/(S + 1/4)), with the mean rank for equal draws. Then

    R̂² = 1 − 1/n + B/W,   B = variance of the means of half chains, W = mean variance within them
    ESS = S/τ,             τ = −1 + 2 Σ_k min(P_0, …, P_k) + …,   P_k = ρ_2k + ρ_2k+1 > 0

and R-hat is the larger of those of the draws and of their distances from the median.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from .autocovariance import mean_autocovariances

_FEWEST_FOR_THREADS, _MOST_IN_THREADS = 2**15, 2**26  # draws: of one parameter, of all threads

RHat = Callable[[Float[np.ndarray, "halves n"]], float]


class ParameterScores:
    """Normal scores of the draws of one parameter, and what follows from them."""

    def __init__(self, draws: Float[np.ndarray, "chains draws"], quantiles: np.ndarray):
        half = draws.shape[1] // 2
        # The chains' first halves, then their second halves.
        halves = np.concatenate([draws[:, :half], draws[:, -half:]])
        self._shape, self._quantiles = halves.shape, quantiles
        self._order, self._sorted = _sorted(halves.ravel())
        self.scores = self._scores(self._order, self._sorted)

    def ess(self) -> float:
        """The bulk effective sample size."""
        return ess_of_scores(self.scores)

    def rhat(self, of_scores: RHat) -> float:
        """The larger R-hat of draws and of their distances from the median."""
        return max(of_scores(self.scores), of_scores(self.folded()))

    def folded(self) -> Float[np.ndarray, "halves n"]:
        """The scores of the distances from the median."""
        middle = len(self._sorted) // 2
        values = self._sorted.astype(np.float64)
        median = (values[middle] + values[-middle - 1]) / 2
        # The distances of the lower half and of the upper half are sorted. A stable sort merges.
        distances = np.concatenate([median - values[:middle][::-1], values[middle:] - median])
        order = np.argsort(distances, kind="stable")
        distances = distances[order]
        order = self._order[np.where(order < middle, middle - 1 - order, order)]
        return self._scores(order, distances)

    def _scores(self, order: np.ndarray, values: np.ndarray) -> Float[np.ndarray, "halves n"]:
        """The scores of values of which the order and the sorted values are given."""
        size = len(order)
        scores = np.empty(size)
        starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
        if len(starts) == size:
            scores[order] = self._quantiles[2::2]
        else:
            counts = np.diff(starts, append=size)
            twice_the_rank = 2 * starts + counts + 1
            scores[order] = np.repeat(self._quantiles[twice_the_rank], counts)
        return scores.reshape(self._shape)


def for_each_parameter(
    of: Callable[[ParameterScores], tuple[float, ...]],
    positions: Float[np.ndarray, "chains draws d"],
) -> Float[np.ndarray, "d k"]:
    """Apply `of` to the scores of each parameter, with a thread per core if there are many draws.

    >>> positions = np.random.default_rng(0).normal(size=(4, 500, 2))
    >>> for_each_parameter(lambda scores: (scores.ess(), scores.rhat(split_rhat)), positions).shape
    (2, 2)
    """

    chains, draws, dim = positions.shape
    columns, size = range(dim), chains * draws
    quantiles = _quantiles(2 * chains * (draws // 2))

    def of_column(column: int) -> tuple[float, ...]:
        return of(ParameterScores(positions[:, :, column], quantiles))

    cores = min(dim, os.cpu_count() or 1, _MOST_IN_THREADS // size)
    if cores < 2 or size < _FEWEST_FOR_THREADS:
        return np.array([of_column(column) for column in columns])
    with concurrent.futures.ThreadPoolExecutor(cores) as threads:  # NumPy sorts without the GIL
        return np.array(list(threads.map(of_column, columns)))


def split_rhat(scores: Float[np.ndarray, "halves n"]) -> float:
    """R-hat of half chains; NaN if all scores are equal."""
    n = scores.shape[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        between = scores.mean(axis=1).var(ddof=1)
        return float(np.sqrt(1 - 1 / n + between / scores.var(axis=1, ddof=1).mean()))


def nested_rhat(groups: int, scores: Float[np.ndarray, "halves n"]) -> float:
    """R-hat of groups of chains (Margossian et al., 2024); half chain i is in group i mod groups.

    The number of chains must be a multiple of the number of groups.
    """
    means = scores.mean(axis=1).reshape(-1, groups)
    within = scores.var(axis=1, ddof=1).mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        inside_groups = within + means.var(axis=0, ddof=1).mean()
        return float(np.sqrt(1 + means.mean(axis=0).var(ddof=1) / inside_groups))


def _sorted(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order of finite `values`, and the sorted values.

    Sorting integers that hold a float32 and its index takes a tenth of the time of an argsort. The
    order of values in float64 is completed by a sort that is fast on nearly sorted values.
    """
    with np.errstate(over="ignore"):
        bits = (values.astype(np.float32) + np.float32(0)).view(np.uint32)  # −0 becomes 0
    keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.uint64) << np.uint64(32)
    keys |= np.arange(len(values), dtype=np.uint64)
    keys.sort()
    order = (keys & np.uint64(0xFFFFFFFF)).astype(np.intp)
    ordered = values[order]
    if values.dtype != np.float32 and (ordered[1:] < ordered[:-1]).any():
        again = np.argsort(ordered, kind="stable")
        order, ordered = order[again], ordered[again]
    return order, ordered


def _quantiles(size: int) -> Float[np.ndarray, " k"]:
    """Φ⁻¹((r − 3/8)/(size + 1/4)) for r = 0, 1/2, 1, …, size."""
    ranks = np.arange(1, size + 1, 0.5)
    from scipy.special import ndtri  # a slow import

    quantiles = ndtri((ranks[:-1] - 0.375) / (size + 0.25))
    return np.concatenate([[np.nan, np.nan], quantiles])


def ess_of_scores(scores: Float[np.ndarray, "halves n"]) -> float:
    """The effective sample size by Geyer's initial monotone sequence."""
    size, n = scores.size, scores.shape[1]
    if np.ptp(scores) < np.finfo(float).resolution:
        return float(size)
    means = scores.mean(axis=1)
    covariances = mean_autocovariances(scores - means[:, None])
    within = covariances[0] * n / (n - 1)
    total = covariances[0] + (means.var(ddof=1) if len(means) > 1 else 0.0)
    correlations = 1 - (within - covariances) / total
    correlations[0] = 1
    pairs = correlations[: n // 2 * 2].reshape(-1, 2).sum(axis=1)
    last = max(0, (n - 3) // 2)  # the sum ends before this pair at the latest
    ends = np.flatnonzero(pairs[:last] <= 0)
    end = int(ends[0]) if len(ends) else last
    # Half a pair is added at the end, if it is positive or if there are no more lags.
    even = correlations[2 * end]
    rest = even if even > 0 or pairs[end] >= 0 else 0.0
    time = -1 + 2 * np.minimum.accumulate(pairs[:end]).sum() + rest
    return float(size / max(time, 1 / np.log10(size)))
