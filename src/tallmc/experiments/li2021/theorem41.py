"""Theorem 4.1: the unbiased probabilities of least variance are positive for at most d + 1 rows.

The paper has no figure for its theorem. Here the linear program (2) is solved (`diagnose`):

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

import numpy as np
from jaxtyping import Float, Int

from ... import diagnose
from ..results import Claim, Curve, ExperimentSetting, Panel, Result
from .gaussian import N_ROWS, centres

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


def _of_draw(draw: int, n_rows: int, dim: int) -> diagnose.SparseProbabilities:
    rng = np.random.default_rng([draw, n_rows, dim])
    return diagnose.sparse_probabilities(rng.standard_normal((n_rows, dim)))


def _example() -> tuple[list[Curve], list[Claim]]:
    """Gradients of V_i at θ = 0 are −c_i."""
    points = centres(0).astype(float)
    found = diagnose.sparse_probabilities(-points)
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
    first = diagnose.sparse_probabilities(gradients(theta)).support
    kept = []
    for _ in range(20):
        direction = rng.standard_normal(5)
        moved = theta + 0.1 * factor @ direction / np.linalg.norm(direction)
        after = diagnose.sparse_probabilities(gradients(moved)).support
        kept.append(len(np.intersect1d(first, after)) / len(first))
    share = float(np.mean(kept))
    found = f"{share:.0%} of the rows remain"
    return Claim("the support changes with θ", "not all rows remain", found, share < 1)
