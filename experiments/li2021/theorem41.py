"""Theorem 4.1: the unbiased probabilities of least variance are positive for at most d + 1 rows.

The paper has no figure for its theorem. Here the linear program (2) is solved:

- panel (a): on the 50 points of section 5.1, at one position. The points with positive probability
  surround the mean.
- panel (b): the share of positive probabilities against N, for i.i.d. gradients N(0, I_d) as the
  theorem assumes; dashed (d + 1)/N.
- panel (c): the variance relative to uniform draws. The rows nearest to the mean of the gradients
  surround it at a distance of order N^(−1/d), so the ratio falls as N^(−2/d).

How far the probabilities keep when θ moves is measured on a logistic regression with 500 rows and 5
coefficients. The paper calls them impractical because they take a pass over the data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float, Int

from tallmc._core.arrays import check_numeric
from tallmc._core.errors import InvalidInput

from ..results import Claim, Curve, ExperimentSetting, Panel, Result
from .gaussian import N_ROWS, centres

# Sparse optimal probabilities of one draw: Theorem 4.1 of li-2021, by linear programming.
#
# A row I is drawn with probability p_I, and N∇V_I estimates ∇V = Σ ∇V_i. Unlike elsewhere in this
# library, the estimate is not divided by the probability, so it is unbiased for some p only. With
# the errors b_i = N∇V_i − ∇V,
#
#     minimise Σ p_i ‖b_i‖²   subject to   Σ p_i b_i = 0,   Σ p_i = 1,   p ≥ 0   (li-2021, eq. 2)
#
# The objective is the trace of the covariance of N∇V_I. The program has d + 1 equations. A vertex
# of its feasible set has at most d + 1 positive entries (the paper prints ‖θ‖₀ ≤ d + 1 for ‖p‖₀),
# and a linear program has a minimum at a vertex. If the errors are draws from a density, every
# minimum is sparse.
#
# This is a tool for studies with few rows. The probabilities belong to one position θ, and each
# program takes a pass over the rows. The positive entries of the simplex solution are computed anew
# from the equations, so that these hold up to rounding and not up to the tolerance of the solver.


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


DIMENSIONS = (1, 2, 5, 10)
_MOMENT_ERROR = 1e-9


def as_stated(setting: ExperimentSetting) -> Result:
    draws = setting.pick(20, 3)
    numbers = np.unique(np.geomspace(20, setting.pick(5000, 500), setting.pick(9, 4)).astype(int))
    panels = [
        Panel("a", f"rows drawn with positive probability, {N_ROWS} points", "c_i1", "c_i2"),
        Panel("b", "share of the rows that are drawn", "rows N", "share", log_y=True, log_x=True),
        Panel("c", "variance relative to uniform", "rows N", "ratio", log_y=True, log_x=True),
    ]
    curves, claims = _example()
    share = setting.part("linear programs")
    for done, dim in enumerate(DIMENSIONS):
        found = [[_of_draw(draw, n, dim) for draw in range(draws)] for n in numbers]
        counts = np.array([[len(one.support) for one in row] for row in found], float)
        ratios = np.array([[one.variance / one.uniform_variance for one in row] for row in found])
        label = f"d = {dim}"
        curves += [
            Curve("b", label, numbers, counts.mean(axis=1) / numbers),
            Curve("b", f"{label}: (d + 1)/N", numbers, (dim + 1) / numbers, kind="reference"),
            Curve("c", label, numbers, np.exp(np.log(ratios).mean(axis=1))),
        ]
        claims += _claims(dim, numbers, counts, ratios)
        share((done + 1) / len(DIMENSIONS))
    claims.append(_stability())
    return Result(panels, curves, claims)


def _of_draw(draw: int, n_rows: int, dim: int) -> SparseProbabilities:
    rng = np.random.default_rng([draw, n_rows, dim])
    return sparse_probabilities(rng.standard_normal((n_rows, dim)))


def _example() -> tuple[list[Curve], list[Claim]]:
    """Gradients of V_i at θ = 0 are −c_i."""
    points = centres(0).astype(float)
    found = sparse_probabilities(-points)
    kept = points[found.support]
    moment = np.abs(found.probabilities @ points - points.mean(axis=0)).max()
    ratio = found.variance / found.uniform_variance
    curves = [
        Curve("a", "rows", points[:, 0], points[:, 1], kind="cloud"),
        Curve("a", "rows with positive probability", kept[:, 0], kept[:, 1], kind="points"),
    ]
    return curves, [
        Claim("rows drawn on the example", "at most 3", str(len(kept)), len(kept) <= 3),
        Claim(
            "the estimate is unbiased on the example",
            f"error at most {_MOMENT_ERROR:g}",
            f"{moment:.1g}",
            bool(moment <= _MOMENT_ERROR),
        ),
        Claim("variance on the example", "below uniform", f"{ratio:.4f} times", ratio < 1),
    ]


def _claims(
    dim: int,
    numbers: Int[np.ndarray, " k"],
    counts: Float[np.ndarray, "k draws"],
    ratios: Float[np.ndarray, "k draws"],
) -> list[Claim]:
    most = int(counts.max())
    slope = float(np.polyfit(np.log(numbers), np.log(ratios).mean(axis=1), 1)[0])
    return [
        Claim(f"most positive probabilities, d = {dim}", f"{dim + 1}", str(most), most <= dim + 1),
        Claim(
            f"variance against N, d = {dim}",
            f"slope near {-2 / dim:.2f}",
            f"{slope:.2f}",
            abs(slope + 2 / dim) < 0.1,
            required=False,
        ),
    ]


def _stability() -> Claim:
    """How many rows of the support remain when θ moves by a tenth of a posterior sd."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 5))
    y = rng.random(500) < 1 / (1 + np.exp(-x.sum(axis=1)))

    def gradients(theta: Float[np.ndarray, " d"]) -> Float[np.ndarray, "N d"]:
        return (1 / (1 + np.exp(-x @ theta)) - y)[:, None] * x

    theta = np.ones(5)
    rate = 1 / (1 + np.exp(-x @ theta))
    factor = np.linalg.inv(np.linalg.cholesky((x * (rate * (1 - rate))[:, None]).T @ x)).T
    first = sparse_probabilities(gradients(theta)).support
    kept = []
    for _ in range(20):
        direction = rng.standard_normal(5)
        moved = theta + 0.1 * factor @ direction / np.linalg.norm(direction)
        after = sparse_probabilities(gradients(moved)).support
        kept.append(len(np.intersect1d(first, after)) / len(first))
    share = float(np.mean(kept))
    found = f"{share:.0%} of the rows remain"
    return Claim("the support changes with θ", "not all rows remain", found, share < 1)
