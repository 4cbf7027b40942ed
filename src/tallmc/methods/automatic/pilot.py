"""Pilot runs of the automatic choice: pairs of chains whose size follows the measured noise."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from ...engine.kernel import BoundKernel
from ..account import Bias
from ..pair import PairRun


class Pilot(NamedTuple):
    """Measurements from a run of pairs."""

    bias: Bias
    """Bias of the coarse chains."""
    positions: Float[np.ndarray, "chains draws d"]
    """Positions of the fine chains."""
    noise: Float[np.ndarray, " d"]
    """Variance of the gradient noise per parameter, relative to the posterior variance."""
    noise_of_one_draw: float
    """Gradient noise per coordinate of the geometry, with one row per step."""
    noise_per_coordinate: float
    """Gradient noise per coordinate of the geometry, at the actual rows per step."""
    squared_noise: Float[np.ndarray, " steps"]
    """‖Cᵀ noise‖² of single steps."""
    n_row_evals: int
    """Rows touched."""
    failed: bool
    """Whether a chain failed before the end."""

    @classmethod
    def at(cls, positions: Float[np.ndarray, "chains draws d"], noise_of_one_draw: float) -> Pilot:
        """Return the assumptions made before the first run: no bias, and this noise."""
        zeros = np.zeros(positions.shape[2])
        return cls(
            Bias(zeros, zeros, zeros, zeros),
            positions,
            zeros,
            noise_of_one_draw,
            0.0,
            zeros,
            0,
            False,
        )


def run_pairs(
    bound: BoundKernel, start: Float[Array, "chains d"], *, steps: int, burn_in: int, seed: int
) -> Pilot:
    """Run pairs of chains from `start`, at the step size of the kernel and at half of it.

    The coarse chains take `burn_in` steps and then `steps` steps.
    """
    pairs = PairRun(bound, start, burn_in=burn_in, draws=steps, seed=seed)
    _, fine = pairs.positions()
    totals = jax.tree.map(
        lambda leaf: np.asarray(leaf[:, 1], np.float64).sum(axis=0),
        pairs.run.state.chains.memory.selection,
    )
    squared_noise = pairs.run.sample_stats()["grad_noise"].ravel().astype(np.float64)
    return Pilot(
        bias=pairs.bias(),
        positions=fine,
        noise=totals.sum_by_parameter / totals.steps / fine.var(axis=(0, 1)),
        noise_of_one_draw=float(totals.sum_of_one_draw / totals.steps),
        noise_per_coordinate=float(np.mean(squared_noise) / fine.shape[2]),
        squared_noise=squared_noise,
        n_row_evals=pairs.n_row_evals,
        failed=pairs.failed,
    )
