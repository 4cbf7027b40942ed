"""Sparse optimal probabilities of one draw: Theorem 4.1 of li-2021, by linear programming.

A row I is drawn with probability p_I, and N∇V_I estimates ∇V = Σ ∇V_i. Unlike elsewhere in this
library, the estimate is not divided by the probability, so it is unbiased for some p only. With the
errors b_i = N∇V_i − ∇V,

    minimise Σ p_i ‖b_i‖²   subject to   Σ p_i b_i = 0,   Σ p_i = 1,   p ≥ 0       (li-2021, eq. 2)

The objective is the trace of the covariance of N∇V_I. The program has d + 1 equations. A vertex of
its feasible set has at most d + 1 positive entries (the paper prints ‖θ‖₀ ≤ d + 1 for ‖p‖₀), and a
linear program has a minimum at a vertex. If the errors are draws from a density, every minimum is
sparse.

This is a tool for studies with few rows. The probabilities belong to one position θ, and each
program takes a pass over the rows. The positive entries of the simplex solution are computed anew
from the equations, so that these hold up to rounding and not up to the tolerance of the solver.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float, Int

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput


class SparseProbabilities(NamedTuple):
    """Probabilities of the rows, and the noise of an estimate from one draw.

    **Arguments:**

    - `probabilities`: p, one probability per row.
    - `variance`: Σ p_i ‖b_i‖², the trace of the covariance of the estimate.
    - `uniform_variance`: the same for uniform draws, Σ ‖b_i‖²/N.

    >>> SparseProbabilities(np.array([0.5, 0.0, 0.5]), 1.0, 2.0).support
    array([0, 2])
    """

    probabilities: Float[np.ndarray, " N"]
    variance: float
    uniform_variance: float

    @property
    def support(self) -> Int[np.ndarray, " k"]:
        """The rows with positive probability."""
        return np.flatnonzero(self.probabilities)


def sparse_probabilities(row_gradients: ArrayLike) -> SparseProbabilities:
    """Unbiased probabilities of one unweighted draw with the least variance.

    **Arguments:**

    - `row_gradients`: ∇V_i, one matrix row per data row, shape (N, d).

    **Returns:** a `SparseProbabilities` with at most d + 1 positive probabilities.

    **Raises:** `InvalidInput` if `row_gradients` is not a matrix of finite numbers.

    >>> sparse_probabilities([[-2.0], [-1.0], [1.0], [2.0]]).probabilities
    array([0. , 0.5, 0.5, 0. ])
    """
    gradients = np.asarray(check_numeric("row_gradients", row_gradients), np.float64)
    if gradients.ndim != 2 or not gradients.size or not np.isfinite(gradients).all():
        raise InvalidInput(
            "row_gradients",
            "be a matrix of finite numbers, one row per data row",
            f"shape {gradients.shape}",
        )
    errors = len(gradients) * gradients - gradients.sum(axis=0)
    squares = np.sum(errors**2, axis=1)
    p = cheapest_probabilities(squares, errors)
    return SparseProbabilities(p, float(p @ squares), float(squares.mean()))


def cheapest_probabilities(
    costs: Float[np.ndarray, " N"], errors: Float[np.ndarray, "N d"]
) -> Float[np.ndarray, " N"]:
    """The probabilities with mean error zero and the least mean cost, at a vertex."""
    from scipy.optimize import linprog  # a slow import

    # The solver's tolerances are absolute.
    size, cost = np.sqrt(np.mean(errors**2)) or 1.0, np.mean(costs) or 1.0
    equations = np.vstack([errors.T / size, np.ones(len(errors))])
    right = np.append(np.zeros(errors.shape[1]), 1.0)
    solved = linprog(costs / cost, A_eq=equations, b_eq=right, bounds=(0, None), method="highs-ds")
    assert solved.status == 0, f"uniform probabilities are feasible, but: {solved.message}"
    support = np.flatnonzero(solved.x > 0)
    p = np.zeros(len(errors))
    p[support] = np.linalg.lstsq(equations[:, support], right)[0]
    return np.maximum(p, 0)
