"""Averages over draws of functions of the linear predictors of new rows.

    E[g(z) | data] ≈ Σ_s w_s g(z_s),   z_s = X coef_s + intercept_s,   Σ_s w_s = 1

Blocks of rows bound the memory: at most `_NUMBERS_PER_BLOCK` linear predictors exist at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from ..results.draws import Draws

_NUMBERS_PER_BLOCK = 2**21


@dataclasses.dataclass(frozen=True)
class PredictorDraws:
    """Draws of the coefficients of k linear predictors, from all chains that completed.

    **Arguments:**

    - `slopes`, `intercepts`: one per draw and linear predictor.
    - `weights`: of the draws; their sum is 1.
    """

    slopes: Float[np.ndarray, "draws k p"]
    intercepts: Float[np.ndarray, "draws k"]
    weights: Float[np.ndarray, " draws"]

    def average(
        self,
        X: Float[np.ndarray, "n p"],
        function: Callable[[Float[np.ndarray, "b draws k"]], Float[np.ndarray, "b draws m"]],
    ) -> Float[np.ndarray, "n m"]:
        """The average over draws of a function of the linear predictors of each row."""
        draws, k, p = self.slopes.shape
        rows = max(1, _NUMBERS_PER_BLOCK // (draws * k))
        flat = self.slopes.reshape(draws * k, p).T
        means = []
        for start in range(0, len(X), rows):
            block = np.asarray(X[start : start + rows], np.float64)
            z = (block @ flat).reshape(-1, draws, k) + self.intercepts
            means.append(np.einsum("bsm,s->bm", function(z), self.weights))
        return np.concatenate(means)


def weights_of(draws: Draws) -> Float[np.ndarray, " draws"]:
    """The weight of each draw of the chains that completed; their sum is 1."""
    shape = draws.positions[draws.ok].shape[:2]
    weights = np.ones(shape) if draws.weights is None else draws.weights[draws.ok]
    return weights.reshape(-1) / weights.sum()
