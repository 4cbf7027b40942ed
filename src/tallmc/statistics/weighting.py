"""Statistics of draws that count differently, such as those of decreasing steps.

A draw after a step of size ε_t stands for the time ε_t of the diffusion, so averages over draws of
decreasing steps are weighted by the step size (Welling and Teh, 2011):

    E φ ≈ Σ_t ε_t φ(θ_t) / Σ_t ε_t

Draws of small steps are more correlated than others, so equal weights give them too much weight:
the weighted average has the smaller Monte-Carlo variance. Kish's factor, (Σw)²/(nΣw²), is the share
of effective draws that remains under unequal weights if all draws are equally correlated. For
decreasing steps it is a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from .moments import by_parameter


def weight_efficiency(weights: Float[np.ndarray, "chains draws"] | None) -> float:
    """Kish's factor (Σw)²/(nΣw²), by which unequal weights reduce the effective sample size.

    **Arguments:**

    - `weights`: one weight per draw; None if all draws count the same.

    **Returns:** a number in (0, 1]; 1 for equal weights.

    >>> weight_efficiency(None), weight_efficiency(np.array([[1.0, 1.0, 0.0, 0.0]]))
    (1.0, 0.5)
    """
    if weights is None:
        return 1.0
    return float(weights.sum() ** 2 / (weights.size * (weights**2).sum()))


def quantiles(
    positions: Float[np.ndarray, "chains draws d"],
    levels: Sequence[float],
    weights: Float[np.ndarray, "chains draws"] | None = None,
) -> Float[np.ndarray, "k d"]:
    """Quantiles of each parameter. With weights, the smallest value that reaches the level.

    **Arguments:**

    - `positions`: the draws.
    - `levels`: the k levels, between 0 and 1.
    - `weights`: one weight per draw; None if all draws count the same.

    **Returns:** one row per level.

    >>> draws, weights = np.arange(4.0).reshape(1, 4, 1), np.array([[4.0, 1.0, 1.0, 1.0]])
    >>> quantiles(draws, [0.5]).tolist(), quantiles(draws, [0.5], weights).tolist()
    ([[1.5]], [[0.0]])
    """

    def at(level: float) -> Float[np.ndarray, " d"]:
        if weights is None:
            return by_parameter(lambda part: np.quantile(part, level, axis=(0, 1)), positions)
        flat = weights.ravel()
        return by_parameter(
            lambda part: np.quantile(
                part.reshape(len(flat), -1), level, axis=0, weights=flat, method="inverted_cdf"
            ),
            positions,
        )

    return np.stack([at(level) for level in levels])
