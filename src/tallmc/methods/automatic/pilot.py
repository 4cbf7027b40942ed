"""Pilot runs of the automatic choice: pairs of chains, and the gradient noise where they went."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from ...engine.kernel import BoundKernel
from ...statistics.pareto import pareto_k
from ..account import Bias, ErrorBudget
from ..pair import PairRun
from ..visited_noise import visited_noise

_LARGEST_IMPRECISION = 0.8
"""Errors of a measured bias, relative to the budget. Above 1 the bias counts as unknown."""
_MOST_DRAWS = 6400
_CLEAR = 2.0  # standard errors by which a bias must exceed its budget to be seen at once


class Pilot(NamedTuple):
    """Measurements from a run of pairs."""

    bias: Bias
    """Bias of the coarse chains."""
    positions: Float[np.ndarray, "chains draws d"]
    """Positions of the fine chains."""
    noise: Float[np.ndarray, " d"]
    """Variance of the gradient noise per parameter, relative to the posterior variance."""
    noise_per_coordinate: float
    """Gradient noise per coordinate of the geometry."""
    tail: float
    """Pareto's k of the squared gradient noise; 0 if there is no noise."""
    n_row_evals: int
    """Rows touched."""
    failed: bool
    """Whether a chain failed before the end."""

    @property
    def worst_noise(self) -> float:
        """The noise of the worst parameter or of a coordinate, whichever is larger."""
        return max(float(self.noise.max()), self.noise_per_coordinate)


def run_pairs(
    bound: BoundKernel,
    measured: BoundKernel,
    start: Float[Array, "chains d"],
    *,
    draws: int,
    burn_in: int,
    seed: int,
    precise_for: ErrorBudget | None = None,
) -> Pilot:
    """Run pairs of chains from `start`, at the step size of the kernel and at half of it.

    **Arguments:**

    - `bound`: the kernel of the pairs.
    - `measured`: the kernel whose gradient noise is measured; it draws a fixed number of rows.
    - `start`: one position per pair.
    - `draws`, `burn_in`: steps of the coarse chains.
    - `seed`: the seed.
    - `precise_for`: if given, the pairs run on until the bias is known well enough for this budget,
      or clearly exceeds it.
    """
    pairs = PairRun(bound, start, burn_in=burn_in, draws=draws, seed=seed)
    bias = pairs.bias()
    if precise_for is not None:
        while (
            not pairs.failed
            and pairs.draws < _MOST_DRAWS
            and bias.imprecision(precise_for) > _LARGEST_IMPRECISION
            and bias.excess(precise_for, errors=_CLEAR) <= 1
        ):
            pairs.run_to(2 * pairs.draws)
            bias = pairs.bias()
    _, fine = pairs.positions()
    if pairs.failed:
        nothing = np.full(fine.shape[2], np.nan)
        return Pilot(bias, fine, nothing, np.nan, 0.0, pairs.n_row_evals, True)
    found = visited_noise(measured.composition, measured.rows, fine, seed)
    variance = np.maximum(fine.var(axis=(0, 1)), np.finfo(float).tiny)
    return Pilot(
        bias=bias,
        positions=fine,
        noise=found.by_parameter / variance,
        noise_per_coordinate=found.per_coordinate,
        tail=pareto_k(found.squared) if found.squared.any() else 0.0,
        n_row_evals=pairs.n_row_evals + found.n_row_evals,
        failed=False,
    )
