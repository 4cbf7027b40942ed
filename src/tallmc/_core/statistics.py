"""Statistics of draws: moments, quantiles, tails, effective sample sizes and R-hat."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from .arrays import HostDraws, HostVector, check_numeric
from .errors import InvalidInput
from .supervision import core_count

# Means and standard deviations of draws, in pieces: more draws need no more memory.

_BYTES_AT_ONCE = 2**23


def pieces(positions: HostDraws) -> Iterator[Float[np.ndarray, "chains n d"]]:
    """The draws in order and in float64, as pieces of bounded size."""
    chains, draws, dim = positions.shape
    at_once = max(1, _BYTES_AT_ONCE // max(8 * chains * dim, 1))
    for first in range(0, draws, at_once):
        yield positions[:, first : first + at_once].astype(np.float64)


def by_parameter(
    of: Callable[[Float[np.ndarray, "chains draws k"]], np.ndarray], positions: HostDraws
) -> HostVector:
    """Apply `of` to all draws of a few parameters at a time, in float64."""
    chains, draws, dim = positions.shape
    at_once = max(1, 16 * _BYTES_AT_ONCE // max(8 * chains * draws, 1))
    starts = range(0, dim, at_once)
    some = (positions[:, :, first : first + at_once].astype(np.float64) for first in starts)
    return np.concatenate([of(part) for part in some])


class Moments(NamedTuple):
    """Moments of all draws, and the extent of each chain."""

    mean: HostVector
    sd: HostVector
    extent: Float[np.ndarray, "chains d"]  # largest minus smallest value, per chain


def moments(
    positions: HostDraws, weights: Float[np.ndarray, "chains draws"] | None = None
) -> Moments:
    """The moments of all draws as a population, updated piece by piece (Chan et al., 1983)."""
    chains, draws, dim = positions.shape
    weights = np.ones((chains, draws)) if weights is None else weights
    count, mean, squares, first = 0.0, np.zeros(dim), np.zeros(dim), 0
    low, high = np.full((chains, dim), np.inf), np.full((chains, dim), -np.inf)
    for piece in pieces(positions):
        w = weights[:, first : first + piece.shape[1], None]
        new, first = float(w.sum()), first + piece.shape[1]
        piece_mean = (w * piece).sum(axis=(0, 1)) / new
        change, total = piece_mean - mean, count + new
        squares += (w * (piece - piece_mean) ** 2).sum(axis=(0, 1))
        squares += change**2 * count * new / total
        mean, count = mean + change * new / total, total
        low, high = np.minimum(low, piece.min(axis=1)), np.maximum(high, piece.max(axis=1))
    return Moments(mean, np.sqrt(squares / (count or 1.0)), high - low)


# Means and standard deviations over steps, of parameters that seldom change.
#
# A group keeps its parameters until a step touches it. Its average over steps is therefore updated
# when the group is touched, with the number of steps that the old values have lasted (West, 1979):
#
#     W' = W + w,   m' = m + (w/W')(z − m),   S' = S + w (z − m)(z − m')
#
# The cost of a step is proportional to the touched groups, not to all groups.


class GroupMoments(NamedTuple):
    """Means and standard deviations of the parameters of all groups of one kind.

    They are averages over all steps after burn-in of all chains that completed.
    """

    mean: Float[np.ndarray, "groups ..."]
    sd: Float[np.ndarray, "groups ..."]
    mean_error: Float[np.ndarray, "groups ..."]
    """Standard error of `mean`, from the means of the chains; NaN for a single chain."""

    @classmethod
    def pooled(
        cls,
        means: Float[np.ndarray, "chains groups ..."],
        variances: Float[Any, "chains groups ..."],
    ) -> GroupMoments:
        between = means.var(axis=0)
        error = np.full(means.shape[1:], np.nan, means.dtype)
        if len(means) > 1:
            error = np.sqrt(between / (len(means) - 1))
        return cls(means.mean(axis=0), np.sqrt(variances.mean(axis=0) + between), error)


def extended(
    mean: Float[Any, "*k"],
    squares: Float[Any, "*k"],
    values: Float[Any, "*k"],
    lasted: Any,
    after: Any,
) -> tuple[Array, Array]:
    """M' and S' of `after` steps, of which the last `lasted` had these values."""
    move = values - mean
    new = mean + lasted / jnp.maximum(after, 1) * move
    return new, squares + lasted * move * (values - new)


# A bounded number of draws, evenly spaced along chains of any length.


class ThinnedHistory:
    """Evenly spaced draws of a run of any length.

    Each chain keeps fewer than 2 · `most` draws and, once the run is long enough, at least `most`.
    """

    def __init__(self, most: int, n_chains: int, dim: int):
        self.most, self.every, self.seen = most, 1, 0
        self.kept = np.zeros((n_chains, 0, dim))

    def add(self, positions: Float[np.ndarray, "chains k d"]) -> None:
        number = self.seen + 1 + np.arange(positions.shape[1])
        self.kept = np.concatenate([self.kept, positions[:, number % self.every == 0]], axis=1)
        self.seen += positions.shape[1]
        while self.kept.shape[1] >= 2 * self.most:
            self.kept, self.every = self.kept[:, 1::2], 2 * self.every


def evenly(count: int, most: int) -> np.ndarray:
    """At most `most` evenly spaced indices below `count`; the last index is one of them."""
    kept = min(count, most)
    return np.arange(1, kept + 1) * count // max(kept, 1) - 1


def evenly_in_weight(weights: Float[np.ndarray, " n"], count: int) -> np.ndarray:
    """`count` indices, evenly spaced in the cumulated weights: large weights may come twice."""
    cumulated = np.cumsum(weights, dtype=np.float64)
    wanted = (np.arange(count) + 0.5) / count * cumulated[-1]
    return np.minimum(np.searchsorted(cumulated, wanted), len(weights) - 1)


# Statistics of draws that count differently, such as those of decreasing steps.
#
# A draw after a step of size ε_t stands for the time ε_t of the diffusion, so averages over draws
# of decreasing steps are weighted by the step size (Welling and Teh, 2011):
#
#     E φ ≈ Σ_t ε_t φ(θ_t) / Σ_t ε_t
#
# Draws of small steps are more correlated than others, so equal weights give them too much weight:
# the weighted average has the smaller Monte-Carlo variance. Kish's factor, (Σw)²/(nΣw²), is the
# share of effective draws that remains under unequal weights if all draws are equally correlated.
# For decreasing steps it is a lower bound.


# Pareto's k: how heavy the right tail of some values is.
#
# A generalised Pareto law is fitted to the largest values, as far as they exceed the others (Zhang
# and Stephens, 2009), with the weak prior of Vehtari et al. (2024). The variance of the values is
# infinite from k = 0.5 on, their mean from k = 1 on.

HEAVY_TAIL = 0.7  # a mean is unreliable above this k (Vehtari et al., 2024)
_FEWEST_VALUES = 25
_PRIOR_VALUES, _PRIOR_K = 10, 0.5


def pareto_k(values: ArrayLike) -> float:
    """Pareto's k of the right tail of independent values, the number that ArviZ computes."""
    ordered = np.sort(np.asarray(check_numeric("values", values), np.float64).ravel())
    if len(ordered) < _FEWEST_VALUES or not np.isfinite(ordered).all():
        rule = f"be at least {_FEWEST_VALUES} finite numbers"
        raise InvalidInput("values", rule, f"{len(ordered)} values")
    count = len(ordered)
    in_tail = int(3 * np.sqrt(count)) if count > 225 else count // 5
    tail, cutoff = ordered[-in_tail:], ordered[-in_tail - 1]
    if tail[-1] - tail[0] <= np.finfo(float).tiny:
        return -np.inf
    return _fitted_k(np.maximum(tail - cutoff, np.finfo(float).tiny))


_FAT, _SHARE_IN_TAIL = 6.0, 0.05
FOURTH_MOMENT, SECOND_MOMENT = 0.25, 0.5
"""Tail indices k from which on a law has no fourth moment, and no variance."""


def tail_index(draws: Float[np.ndarray, " n"], ess: float) -> float:
    """The largest plausible k of |x − median|: its estimate and a standard error.

    It is −∞ where the kurtosis gives no reason to look.
    """
    in_tail = int(_SHARE_IN_TAIL * len(draws))
    if in_tail < _FEWEST_VALUES or kurtosis(draws) < _FAT:
        return -np.inf
    sizes = np.sort(np.abs(draws - np.median(draws)))
    k = _fitted_k(np.maximum(sizes[-in_tail:] - sizes[-in_tail - 1], np.finfo(float).tiny))
    return k + (1 + k) / float(np.sqrt(max(_SHARE_IN_TAIL * ess, 1)))


def kurtosis(draws: Float[np.ndarray, " n"]) -> float:
    """E(x − Ex)⁴ / Var(x)²; 0 of a constant."""
    squares = (draws - draws.mean()) ** 2
    return float(np.mean(squares**2) / max(squares.mean() ** 2, np.finfo(float).tiny))


def _fitted_k(excesses: Float[np.ndarray, " n"]) -> float:
    """K of the excesses, in ascending order: an average over a grid of scales b = −k/σ."""
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


def weight_efficiency(weights: Float[np.ndarray, "chains draws"] | None) -> float:
    """Kish's factor (Σw)²/(nΣw²), by which unequal weights reduce the effective sample size."""
    if weights is None:
        return 1.0
    return float(weights.sum() ** 2 / (weights.size * (weights**2).sum()))


def quantiles(
    positions: HostDraws,
    levels: Sequence[float],
    weights: Float[np.ndarray, "chains draws"] | None = None,
) -> Float[np.ndarray, "k d"]:
    """Quantiles per level and parameter; with weights, the smallest value that reaches a level."""

    def at(level: float, part: Float[np.ndarray, "chains draws k"]) -> Float[np.ndarray, " k"]:
        if weights is None:
            return np.quantile(part, level, axis=(0, 1))
        w, listed = weights.ravel(), part.reshape(weights.size, -1)
        return np.quantile(listed, level, axis=0, weights=w, method="inverted_cdf")

    return np.stack([by_parameter(functools.partial(at, level), positions) for level in levels])


# Autocovariances of chains, by the fast Fourier transform.


def mean_autocovariances(centred: Float[np.ndarray, "chains n"]) -> Float[np.ndarray, " n"]:
    """Autocovariances at every lag, averaged over chains whose means have been subtracted.

    Sums are divided by n at every lag. Only the mean spectrum is transformed back.
    """
    n = centred.shape[1]
    from scipy.fft import irfft, next_fast_len, rfft  # a slow import

    padded = next_fast_len(2 * n, real=True)
    transformed = rfft(centred, padded, axis=1)
    spectrum = np.einsum("ij,ij->j", transformed.real, transformed.real)
    spectrum += np.einsum("ij,ij->j", transformed.imag, transformed.imag)
    return irfft(spectrum, padded)[:n] / centred.size


# Bulk ESS and R-hat from normal scores (Vehtari et al., 2021), one parameter at a time.
#
# The numbers are those of ArviZ up to rounding; `tests/test_rank_diagnostics.py` compares them.
# ArviZ takes four to ten times as long. It sorts the draws once per statistic, computes the same
# normal quantiles for each parameter, and transforms each chain back from its spectrum.
#
# Chains are split in halves, which are then treated as chains. The draws of a parameter are
# replaced by normal scores z = Φ⁻¹((rank − 3/8)/(S + 1/4)), with the mean rank for equal draws.
# Then
#
#     R̂² = 1 − 1/n + B/W,   B = variance of the means of half chains, W = mean variance within them
#     ESS = S/τ,             τ = −1 + 2 Σ_k min(P_0, …, P_k) + …,   P_k = ρ_2k + ρ_2k+1 > 0
#
# and R-hat is the larger of those of the draws and of their distances from the median.

# Draws: of one parameter, and of all threads together, which take about 100 bytes for each.
_FEWEST_FOR_THREADS, _MOST_IN_THREADS = 2**15, 2**21

RHat = Callable[[Float[np.ndarray, "halves n"]], float]


class ParameterScores:
    """Normal scores of the draws of one parameter, and what follows from them."""

    def __init__(self, draws: Float[np.ndarray, "chains draws"], quantiles: np.ndarray):
        halves = _halves(draws)
        self._shape, self._quantiles = halves.shape, quantiles
        self._order, self._sorted = _sorted(halves.ravel())
        self.scores = self._scores(self._order, self._sorted)

    def ess(self) -> float:
        return ess_of_scores(self.scores)

    def rhat(self, of_scores: RHat) -> float:
        """The larger R-hat of draws and of their distances from the median."""
        return max(of_scores(self.scores), of_scores(self.folded()))

    def folded(self) -> Float[np.ndarray, "halves n"]:
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


def _halves(chains: Float[np.ndarray, "chains n"]) -> Float[np.ndarray, "halves k"]:
    """The chains' first halves, then their second halves."""
    half = chains.shape[1] // 2
    return np.concatenate([chains[:, :half], chains[:, -half:]])


def for_each_parameter(
    of: Callable[[ParameterScores], tuple[float, ...]], positions: HostDraws
) -> Float[np.ndarray, "d k"]:
    """Apply `of` to the scores of each parameter, with a thread per core for many draws."""
    chains, draws, dim = positions.shape
    columns, size = range(dim), chains * draws
    quantiles = _quantiles(2 * chains * (draws // 2))

    def of_column(column: int) -> tuple[float, ...]:
        return of(ParameterScores(positions[:, :, column], quantiles))

    cores = min(dim, core_count(), _MOST_IN_THREADS // size)
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


FEWEST_EFFECTIVE_DRAWS = 400  # fewer raise a doubt of their own
_LARGEST_RHAT = 1.01
_FALSE_ALARMS = 0.01  # probability that chains in equilibrium are found to disagree
_LARGEST_LIMIT = 1.1
# With many short chains the halves of one chain say little. Groups of chains are compared instead.
_MANY_CHAINS, _FEW_DRAWS, _GROUPS = 64, 200, 16
# Parameters to examine per criterion: as many as have so many draws together, within limits.
_DRAWS_EXAMINED, _FEWEST_EXAMINED, _MOST_EXAMINED = 2**20, 6, 64
_DRAWS_AT_ONCE = 2**16  # of all parameters, in the cheaper criteria: they stay in cache


def ess(positions: ArrayLike) -> HostVector:
    """Bulk effective sample size of each coordinate (Vehtari et al., 2021).

    `positions` are finite draws of shape (chains, draws, d), with at least four draws per chain.
    """
    checked = _check_positions(positions, min_chains=1)
    return for_each_parameter(lambda scores: (scores.ess(),), checked)[:, 0]


def rhat(positions: ArrayLike) -> HostVector:
    """Rank-normalised split R-hat of each coordinate (Vehtari et al., 2021).

    `positions` are finite draws of shape (chains, draws, d), chains >= 2 and draws >= 4.
    """
    checked = _check_positions(positions, min_chains=2)
    return for_each_parameter(lambda scores: (scores.rhat(split_rhat),), checked)[:, 0]


_TAILS = (0.11, 0.89)  # of the tail ESS, as by default in ArviZ


class EntrySummary(NamedTuple):
    """Diagnostics of each entry, with the names and the definitions of ArviZ."""

    ess_bulk: HostVector
    ess_tail: HostVector
    rhat: HostVector
    mcse_mean: HostVector
    mcse_sd: HostVector


def diagnostics(draws: HostDraws) -> EntrySummary:
    """The numbers of `arviz_stats.summary`, without its imports; NaN with fewer than four draws."""
    dim = draws.shape[2]
    if draws.shape[1] < 4:
        return EntrySummary(*np.full((5, dim), np.nan))
    quantiles = _quantiles(2 * len(draws) * (draws.shape[1] // 2))
    found = np.empty((dim, 5))
    for j in range(dim):
        x = np.asarray(draws[:, :, j], np.float64)
        scores = ParameterScores(x, quantiles)

        def ess_of(values: np.ndarray) -> float:
            return ess_of_scores(_halves(values * 1.0))

        squares = (x - x.mean()) ** 2
        variance, for_mean = squares.mean(), ess_of(x)
        of_variance = ((squares**2).mean() - variance**2) / for_mean
        with np.errstate(invalid="ignore", divide="ignore"):
            found[j] = (
                scores.ess(),
                min(ess_of(x <= tail) for tail in np.quantile(x, _TAILS)),
                scores.rhat(split_rhat) if len(x) > 1 else np.nan,
                x.std(ddof=1) / np.sqrt(for_mean),
                np.sqrt(of_variance / variance / 4),
            )
    return EntrySummary(*found.T)


def effective_draws(positions: HostDraws) -> float:
    return float(np.min(ess(positions[:, :, suspects(positions)])))


class Agreement(NamedTuple):
    """How well the chains agree, and how many independent draws they are worth."""

    ess: Float[np.ndarray, " k"]  # effective draws of the examined parameters: the fewer ones of
    # those for the mean and those for the spread
    rhat: float  # R-hat of the worst parameter; NaN with one chain of fewer than eight draws
    limit: float  # largest R-hat that chance explains for that parameter
    parameters: np.ndarray  # the examined parameters: all, or the worst ones by cheaper criteria
    bulk: Float[np.ndarray, " k"]  # effective draws for the mean, as in tables
    largest_rhat: float  # the largest R-hat, as in tables; chance explains more where ESS is small

    @property
    def reached(self) -> bool:
        """Whether R-hat gives no reason to doubt that the chains have the same law."""
        return not self.rhat > self.limit


def agreement(positions: HostDraws) -> Agreement:
    """Judge R-hat against its own distribution.

    Chains in equilibrium have R̂² ≈ 1 − 1/n + (m/ESS) χ²/(m − 1), where χ² has m − 1 degrees of
    freedom, m is the number of half chains and n their length. The largest of d such numbers grows
    with d. The limit is the larger of 1.01 and the value that the worst of all parameters exceeds
    in one run of a hundred. With many short chains, m groups of chains replace the half chains:
    this is the nested R-hat of Margossian et al. (2024). Quarters of a single chain are compared.
    R-hat of the draws and R-hat of their distances from the median have an ESS and a limit of their
    own: distances mix more slowly than draws in Hamiltonian Monte Carlo.
    """
    n_chains, n_draws, dim = positions.shape
    examined = suspects(positions)
    chosen = compared = _check_positions(positions[:, :, examined], min_chains=1)
    alone = n_chains == 1
    if alone and n_draws < 8:
        return Agreement(bulk := ess(chosen), np.nan, np.nan, examined, bulk, np.nan)
    parts = 4 if alone else 2
    groups, excess, rhat_of = parts * n_chains, -parts / n_draws, split_rhat
    if n_chains >= _MANY_CHAINS and n_draws < _FEW_DRAWS:
        groups, excess, rhat_of = _GROUPS, 0.0, functools.partial(nested_rhat, _GROUPS)
        if n_chains % _GROUPS:
            compared = chosen[: n_chains // _GROUPS * _GROUPS]

    # Ranks take most of the time, so all numbers are computed from one ranking.
    kinds = [rhat_of] + ([] if rhat_of is split_rhat else [split_rhat])

    def of_parameter(scores: ParameterScores) -> tuple[float, ...]:
        both = [scores.scores, scores.folded()]
        effective = [ess_of_scores(of) for of in both]
        chains = [_halves(of) for of in both] if alone else both
        return *effective, *(kind(of) for kind in kinds for of in chains)

    # The first row is about the draws, the second about their distances from the median.
    effective, found, *split = for_each_parameter(of_parameter, compared).T.reshape(
        1 + len(kinds), 2, -1
    )
    bulk = effective[0] if compared is chosen else ess(chosen)
    # `compared` may leave out some chains.
    of_all = np.minimum(bulk, effective[1] * (chosen.size / compared.size))
    from scipy.special import chdtri  # a slow import

    chance = chdtri(groups - 1, _FALSE_ALARMS / (2 * dim)) / (groups - 1)
    draws = np.maximum(effective, FEWEST_EFFECTIVE_DRAWS)
    limits = np.sqrt(np.maximum(1 + excess + chance * groups / draws, 1))
    limits = np.clip(limits, _LARGEST_RHAT, _LARGEST_LIMIT)
    # A constant parameter has no R-hat. Its chains agree.
    excesses = np.nan_to_num(found - limits, nan=-np.inf)
    worst = np.unravel_index(np.argmax(excesses), found.shape)
    in_tables = split[0] if split else found
    if split and compared is not chosen:
        in_tables = rhat(chosen)
    finite = in_tables[np.isfinite(in_tables)]
    largest = float(finite.max()) if finite.size else np.nan
    return Agreement(of_all, float(found[worst]), float(limits[worst]), examined, bulk, largest)


def suspects(positions: HostDraws) -> np.ndarray:
    """The parameters most likely to have the smallest ESS or the largest R-hat.

    All parameters, unless they have many draws together. Then the worst by each of the criteria of
    `_criteria`, which take no ranks and no Fourier transforms.
    """
    n_chains, n_draws, dim = positions.shape
    affordable = _DRAWS_EXAMINED // (n_chains * n_draws)
    per_criterion = min(max(affordable, _FEWEST_EXAMINED), _MOST_EXAMINED)
    if dim <= 2 * per_criterion:
        return np.arange(dim)
    return np.unique(np.argsort(_criteria(positions), axis=1)[:, -per_criterion:])


def _criteria(positions: HostDraws) -> Float[np.ndarray, "4 d"]:
    """Signs of slow mixing and of disagreement, one row each; 0 for constant parameters.

    The autocorrelation at lag one; the variance of the means of half chains, as it is and relative
    to the variance that this autocorrelation explains; the variance over half chains of the mean
    distance from the centre.
    """
    n_chains, n_draws, dim = positions.shape
    half, centre = n_draws // 2, positions[:, -1].mean(axis=0)
    means, distances, squares, products = np.empty((4, n_chains, 2, dim))
    at_once = max(1, _DRAWS_AT_ONCE // (n_draws * dim))
    for first in range(0, n_chains, at_once):
        some = slice(first, first + at_once)
        halves = positions[some, : 2 * half].reshape(-1, 2, half, dim) - centre
        means[some] = halves.mean(axis=2)
        distances[some] = np.abs(halves).mean(axis=2)
        squares[some] = np.einsum("chnd,chnd->chd", halves, halves) / half
        products[some] = np.einsum("chnd,chnd->chd", halves[:, :, 1:], halves[:, :, :-1])
    products /= half - 1
    spread = means.var(axis=(0, 1))
    variance = np.maximum((squares - means**2).mean(axis=(0, 1)), np.finfo(np.float32).tiny)
    lag_one = np.clip((products - means**2).mean(axis=(0, 1)) / variance, -0.9, 0.999)
    explained = (1 + lag_one) / (1 - lag_one)
    total = spread + variance
    return np.stack(
        [
            (spread + lag_one * variance) / total,
            spread / total,
            spread / variance / explained,
            distances.var(axis=(0, 1)) / total,
        ]
    )


def _check_positions(positions: ArrayLike, min_chains: int) -> np.ndarray:
    values = np.asarray(check_numeric("positions", positions))
    if values.dtype != np.float32:
        values = values.astype(np.float64, copy=False)
    least = (min_chains, 4, 1)
    if values.ndim != 3 or any(n < low for n, low in zip(values.shape, least, strict=True)):
        rule = f"have shape (chains, draws, d) with chains >= {min_chains} and draws >= 4"
        raise InvalidInput("positions", rule, f"shape {values.shape}")
    finite = np.isfinite(values).all(axis=(1, 2))
    if not finite.all():
        cure = "Leave out chains that failed: draws.positions[draws.ok]."
        found = f"NaN or infinity in chain {np.argmin(finite)}"
        raise InvalidInput("positions", "be finite", found, cure)
    return values


def add_by_code(
    totals: Float[np.ndarray, "G ..."], codes: Int[np.ndarray, " n"], values: np.ndarray
) -> None:
    """Add values, (n, ...), to the totals of their codes."""
    order = np.argsort(codes, kind="stable")
    found, starts = np.unique(codes[order], return_index=True)
    totals[found] += np.add.reduceat(values[order].astype(np.float64), starts, axis=0)
