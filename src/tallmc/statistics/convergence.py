"""Effective sample size (ESS) and R-hat of plain arrays.

ESS and R-hat use the chains alone. They measure how well the chains agree and how many independent
draws they are worth. They do not measure whether the draws follow the target: a step size that is
too large gives a high ESS, an R-hat of 1 and a wrong answer. `ksd` measures that.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput
from .rank_diagnostics import (
    ParameterScores,
    ess_of_scores,
    for_each_parameter,
    nested_rhat,
    split_rhat,
)

FEWEST_EFFECTIVE_DRAWS = 400  # fewer raise a doubt of their own
_LARGEST_RHAT = 1.01
_FALSE_ALARMS = 0.01  # probability that chains in equilibrium are found to disagree
_LARGEST_LIMIT = 1.1
# With many short chains the halves of one chain say little. Groups of chains are compared instead.
_MANY_CHAINS, _FEW_DRAWS, _GROUPS = 64, 200, 16
# Parameters to examine per criterion: as many as have so many draws together, within limits.
_DRAWS_EXAMINED, _FEWEST_EXAMINED, _MOST_EXAMINED = 2**20, 6, 64
_DRAWS_AT_ONCE = 2**16  # of all parameters, in the cheaper criteria: they stay in cache


def ess(positions: ArrayLike) -> Float[np.ndarray, " d"]:
    """Bulk effective sample size of each coordinate (Vehtari et al., 2021).

    **Arguments:**

    - `positions`: draws of shape (chains, draws, d), with at least four draws per chain.

    **Returns:** one number per coordinate.

    **Raises:** `InvalidInput` if the shape is wrong or a draw is not finite.

    >>> import numpy as np
    >>> positions = np.random.default_rng(0).normal(size=(4, 500, 2))
    >>> ess(positions).round()
    array([1712., 2022.])
    """
    checked = _check_positions(positions, min_chains=1)
    return for_each_parameter(lambda scores: (scores.ess(),), checked)[:, 0]


def rhat(positions: ArrayLike) -> Float[np.ndarray, " d"]:
    """Rank-normalised split R-hat of each coordinate (Vehtari et al., 2021).

    **Arguments:**

    - `positions`: draws of shape (chains, draws, d), with at least two chains and four draws per
      chain.

    **Returns:** one number per coordinate.

    **Raises:** `InvalidInput` if the shape is wrong or a draw is not finite.

    >>> import numpy as np
    >>> positions = np.random.default_rng(0).normal(size=(4, 500, 2))
    >>> rhat(positions + np.array([0.0, 1.0]) * np.arange(4)[:, None, None]).round(1)
    array([1. , 1.6])
    """
    checked = _check_positions(positions, min_chains=2)
    return for_each_parameter(lambda scores: (scores.rhat(split_rhat),), checked)[:, 0]


def effective_draws(positions: Float[np.ndarray, "chains draws d"]) -> float:
    """The smallest ESS over the parameters."""
    return float(np.min(ess(positions[:, :, suspects(positions)])))


class Agreement(NamedTuple):
    """How well the chains agree, and how many independent draws they are worth."""

    ess: Float[np.ndarray, " k"]
    """Effective draws of the examined parameters."""
    rhat: float
    """R-hat of the worst parameter; NaN with one chain of fewer than eight draws."""
    limit: float
    """Largest R-hat that chance explains for that parameter."""
    parameters: np.ndarray
    """The examined parameters: all, or the worst ones by cheaper criteria."""

    @property
    def reached(self) -> bool:
        """Whether R-hat gives no reason to doubt that the chains have the same law."""
        return not self.rhat > self.limit


def agreement(positions: Float[np.ndarray, "chains draws d"]) -> Agreement:
    """Judge R-hat against its own distribution.

    Chains in equilibrium have R̂² ≈ 1 − 1/n + (m/ESS) χ²/(m − 1), where χ² has m − 1 degrees of
    freedom, m is the number of half chains and n their length. The largest of d such numbers grows
    with d. The limit is the larger of 1.01 and the value that the worst of all parameters exceeds
    in one run of a hundred. With many short chains, m groups of chains replace the half chains:
    this is the nested R-hat of Margossian et al. (2024). A single chain is compared with itself.
    R-hat of the draws and R-hat of their distances from the median have an ESS and a limit of their
    own: distances mix more slowly than draws in Hamiltonian Monte Carlo.

    >>> import numpy as np
    >>> positions = np.random.default_rng(0).normal(size=(8, 500, 3))
    >>> agreement(positions).reached
    True
    >>> agreement(positions + np.arange(8)[:, None, None]).reached
    False
    """
    n_chains, n_draws, dim = positions.shape
    examined = suspects(positions)
    chosen = compared = _check_positions(positions[:, :, examined], min_chains=1)
    if n_chains == 1:
        if n_draws < 8:
            return Agreement(ess(chosen), np.nan, np.nan, examined)
        half = n_draws // 2
        compared = np.concatenate([chosen[:, :half], chosen[:, half : 2 * half]])
        n_chains, n_draws = 2, half
    groups, excess, rhat_of = 2 * n_chains, -2 / n_draws, split_rhat
    if n_chains >= _MANY_CHAINS and n_draws < _FEW_DRAWS:
        groups, excess, rhat_of = _GROUPS, 0.0, functools.partial(nested_rhat, _GROUPS)
        if n_chains % _GROUPS:
            compared = chosen[: n_chains // _GROUPS * _GROUPS]

    def of_parameter(scores: ParameterScores) -> tuple[float, ...]:
        both = scores.scores, scores.folded()
        return *map(ess_of_scores, both), *map(rhat_of, both)

    # The first row is about the draws, the second about their distances from the median.
    effective, found = for_each_parameter(of_parameter, compared).T.reshape(2, 2, -1)
    of_all = effective[0] if compared is chosen else ess(chosen)
    from scipy.special import chdtri  # a slow import

    chance = chdtri(groups - 1, _FALSE_ALARMS / (2 * dim)) / (groups - 1)
    draws = np.maximum(effective, FEWEST_EFFECTIVE_DRAWS)
    limits = np.sqrt(np.maximum(1 + excess + chance * groups / draws, 1))
    limits = np.clip(limits, _LARGEST_RHAT, _LARGEST_LIMIT)
    # A constant parameter has no R-hat. Its chains agree.
    excesses = np.nan_to_num(found - limits, nan=-np.inf)
    worst = np.unravel_index(np.argmax(excesses), found.shape)
    return Agreement(of_all, float(found[worst]), float(limits[worst]), examined)


def suspects(positions: Float[np.ndarray, "chains draws d"]) -> np.ndarray:
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


def _criteria(positions: Float[np.ndarray, "chains draws d"]) -> Float[np.ndarray, "4 d"]:
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
    if (
        values.ndim != 3
        or values.shape[0] < min_chains
        or values.shape[1] < 4
        or not values.shape[2]
    ):
        rule = f"have shape (chains, draws, d) with chains >= {min_chains} and draws >= 4"
        raise InvalidInput("positions", rule, f"shape {values.shape}")
    finite = np.isfinite(values).all(axis=(1, 2))
    if not finite.all():
        cure = "Leave out chains that failed: draws.positions[draws.ok]."
        raise InvalidInput(
            "positions", "be finite", f"NaN or infinity in chain {np.argmin(finite)}", cure
        )
    return values
