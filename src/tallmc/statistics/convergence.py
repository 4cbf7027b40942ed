"""Effective sample size (ESS), R-hat and Pareto's k of plain arrays, computed by ArviZ.

ESS and R-hat use the chains alone. They measure how well the chains agree and how many independent
draws they are worth. They do not measure whether the draws follow the target: a step size that is
too large gives a high ESS, an R-hat of 1 and a wrong answer. `ksd` measures that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput
from .moments import by_parameter

HEAVY_TAIL = 0.7  # a mean is unreliable above this Pareto k (Vehtari et al., 2024)


def ess(positions: ArrayLike) -> Float[np.ndarray, " d"]:
    """Bulk effective sample size of each coordinate (Vehtari et al., 2021).

    **Arguments:**

    - `positions`: draws of shape (chains, draws, d), with at least four draws per chain.

    **Returns:** one number per coordinate.

    **Raises:** `InvalidInput` if the shape is wrong or a draw is not finite. `ImportError` without
    ArviZ.

    >>> import numpy as np
    >>> positions = np.random.default_rng(0).normal(size=(4, 500, 2))
    >>> ess(positions).round()
    array([1712., 2022.])
    """
    return _array_stats().ess(
        _check_positions(positions, min_chains=1), chain_axis=0, draw_axis=1, method="bulk"
    )


def rhat(positions: ArrayLike) -> Float[np.ndarray, " d"]:
    """Rank-normalised split R-hat of each coordinate (Vehtari et al., 2021).

    **Arguments:**

    - `positions`: draws of shape (chains, draws, d), with at least two chains and four draws per
      chain.

    **Returns:** one number per coordinate.

    **Raises:** `InvalidInput` if the shape is wrong or a draw is not finite. `ImportError` without
    ArviZ.

    >>> import numpy as np
    >>> positions = np.random.default_rng(0).normal(size=(4, 500, 2))
    >>> rhat(positions + np.array([0.0, 1.0]) * np.arange(4)[:, None, None]).round(1)
    array([1. , 1.6])
    """
    return _array_stats().rhat(
        _check_positions(positions, min_chains=2), chain_axis=0, draw_axis=1, method="rank"
    )


def effective_draws(positions: Float[np.ndarray, "chains draws d"]) -> float:
    """The smallest ESS over the parameters, computed for a few parameters at a time."""
    return float(np.min(by_parameter(ess, positions)))


def pareto_k(values: ArrayLike) -> float:
    """Pareto's k of the right tail of `values`.

    The variance is infinite from k = 0.5 on, the mean from k = 1 on.

    >>> import numpy as np
    >>> round(pareto_k(np.random.default_rng(0).pareto(2.0, size=10_000)), 1)  # true k: 1/2
    0.5
    """
    values = np.asarray(check_numeric("values", values), np.float64)
    return float(
        _array_stats().pareto_khat(values[None, :], chain_axis=0, draw_axis=1, tail="right")
    )


def _check_positions(positions: ArrayLike, min_chains: int) -> np.ndarray:
    values = np.asarray(check_numeric("positions", positions), np.float64)
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


def _array_stats() -> Any:
    try:
        from arviz_stats.base import array_stats
    except ImportError:
        raise ImportError(
            "tallmc.diagnose.ess and rhat need ArviZ: pip install tallmc[arviz]"
        ) from None
    return array_stats
