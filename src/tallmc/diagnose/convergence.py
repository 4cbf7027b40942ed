"""Effective sample size and R-hat of plain arrays, by ArviZ.

Both look at the chains alone. They say how well the chains agree and how many independent draws they are worth, not whether the
draws are of the target: a step that is too large gives a high ESS, an R-hat of 1 and a wrong answer. For that see `ksd`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float

from .._arrays import check_numeric
from .._errors import InvalidInput

HEAVY_TAIL = 0.7  # Pareto's k above which a mean is not to be relied on (Vehtari et al., 2024)


def ess(positions: ArrayLike) -> Float[np.ndarray, " d"]:
    """Bulk effective sample size (Vehtari et al., 2021) of each coordinate of `positions`, (chains, draws, d).

    >>> import numpy as np
    >>> positions = np.random.default_rng(0).normal(size=(4, 500, 2))
    >>> ess(positions).round()
    array([1712., 2022.])
    """
    return _array_stats().ess(_checked(positions, fewest_chains=1), chain_axis=0, draw_axis=1, method="bulk")


def rhat(positions: ArrayLike) -> Float[np.ndarray, " d"]:
    """Rank-normalised split R-hat (Vehtari et al., 2021) of each coordinate of `positions`, (chains, draws, d).

    >>> import numpy as np
    >>> positions = np.random.default_rng(0).normal(size=(4, 500, 2)) + np.array([0.0, 1.0]) * np.arange(4)[:, None, None]
    >>> rhat(positions).round(1)
    array([1. , 1.6])
    """
    return _array_stats().rhat(_checked(positions, fewest_chains=2), chain_axis=0, draw_axis=1, method="rank")


def pareto_k(values: ArrayLike) -> float:
    """Pareto's k of the right tail of these numbers: at 0.5 they have no variance any more, at 1 no mean.

    >>> import numpy as np
    >>> round(pareto_k(np.random.default_rng(0).pareto(2.0, size=10_000)), 1)        # 1/2
    0.5
    """
    values = np.asarray(check_numeric("values", values), np.float64)
    return float(_array_stats().pareto_khat(values[None, :], chain_axis=0, draw_axis=1, tail="right"))


def _checked(positions: ArrayLike, fewest_chains: int) -> np.ndarray:
    values = np.asarray(check_numeric("positions", positions), np.float64)
    if values.ndim != 3 or values.shape[0] < fewest_chains or values.shape[1] < 4 or not values.shape[2]:
        rule = f"have shape (chains, draws, d) with chains >= {fewest_chains} and draws >= 4"
        raise InvalidInput("positions", rule, f"shape {values.shape}")
    finite = np.isfinite(values).all(axis=(1, 2))
    if not finite.all():
        cure = "Leave out chains that failed: draws.positions[draws.ok]."
        raise InvalidInput("positions", "be finite", f"NaN or infinity in chain {np.argmin(finite)}", cure)
    return values


def _array_stats() -> Any:
    try:
        from arviz_stats.base import array_stats
    except ImportError:
        raise ImportError("tallmc.diagnose.ess and rhat need ArviZ: pip install tallmc[arviz]") from None
    return array_stats
