"""Measure the bias of step size and gradient noise with pairs of chains of step size ε and ε/2.

While the coarse chain of a pair takes one step, the fine chain takes two. Both are driven by the
same noise, (η₁ + η₂)/√2 for the coarse chain, and the coarse step sees the rows of the first fine
step. The chains stay close together, so the difference of their averages has far less Monte-Carlo
error than either average. Each chain alone has the law of its own step size.

The coarse and the fine chains are two runs with the same keys, and run the same compiled programs
as the chains of the method.

A bias c₁ε + c₂ε² + … makes the averages differ by c₁ε/2 + ¾c₂ε². Twice the difference has the whole
first term of the coarse chain's bias and more than its second term. Where the first term is cε^p
with another p (`AbstractDynamics.bias_order`), the factor 1/(1 − 2^−p) takes the place of 2. A bias
that does not vanish with the step size remains unseen (`DynamicsChoice.unseen_by_pairs`).
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from ..core.outcome import Outcome
from ..engine.kernel import BoundKernel
from ..engine.run import Run, chain_keys
from ..schedule import halved
from .account import Bias

_PAIRS_PURPOSE = 2  # separates the keys of pairs from the keys of the run


class PairRun:
    """Pairs of chains that have run from `start`, the coarse one at the step size of the kernel.

    **Arguments:**

    - `bound`: the kernel of a composition.
    - `start`: one position per pair.
    - `burn_in`, `thin`: steps of the coarse chains.
    - `draws`: draws per chain.
    - `seed`: the seed.
    - `memory`: what each chain has learned before, as in the state of a run; None starts anew.
    """

    def __init__(
        self,
        bound: BoundKernel,
        start: Float[Array, "chains d"],
        *,
        burn_in: int,
        draws: int,
        thin: int = 1,
        seed: int = 0,
        memory: Any = None,
    ):
        keys = chain_keys(seed, len(start), _PAIRS_PURPOSE)
        composition = bound.composition
        self._bias_order = composition.dynamics.bias_order
        finer = eqx.tree_at(
            lambda kernel: (kernel.schedule, kernel.dynamics),
            composition,
            (halved(composition.schedule), composition.dynamics.finer()),
        )
        self.fine = Run(
            BoundKernel(finer, bound.posterior),
            keys,
            start,
            2 * burn_in,
            2 * thin,
            draws,
            memory=memory,
        )
        self.coarse = Run(bound, keys, start, burn_in, thin, draws, memory=memory, finer=self.fine)
        self.run_to(draws)

    def run_to(self, draws: int) -> None:
        """Run until each chain has this many draws."""
        for run in (self.coarse, self.fine):
            run.run_to(draws)

    @property
    def draws(self) -> int:
        """Draws per chain."""
        return self.coarse.completed

    @property
    def failed(self) -> bool:
        """Whether a chain failed before the end."""
        outcomes = (*self.coarse.outcomes(), *self.fine.outcomes())
        return any(outcome is not Outcome.OK for outcome in outcomes)

    @property
    def n_row_evals(self) -> int:
        """Rows touched."""
        return self.coarse.rows_touched() + self.fine.rows_touched()

    def positions(self) -> tuple[np.ndarray, np.ndarray]:
        """The draws of the coarse chains and of the fine chains."""
        return self.coarse.positions().astype(np.float64), self.fine.positions().astype(np.float64)

    def bias(self, batches: int = 8) -> Bias:
        """Bias of the coarse chains; `batches` per chain give its error."""
        coarse, fine = self.positions()
        centre, sd = fine.mean(axis=(0, 1)), fine.std(axis=(0, 1))
        sd = np.maximum(sd, np.finfo(float).tiny)
        x, y = (coarse - centre) / sd, (fine - centre) / sd
        mean, mean_error = _mean_with_error(x - y, batches)
        spread, spread_error = _mean_with_error((x**2 - y**2) / 2, batches)
        whole = 1 / (1 - 2**-self._bias_order)
        return Bias(whole * mean, whole * mean_error, whole * spread, whole * spread_error)


def _mean_with_error(
    values: Float[np.ndarray, "chains draws d"], batches: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and its standard error by batch means."""
    chains, draws, d = values.shape
    length = draws // batches
    means = values[:, : length * batches].reshape(chains * batches, length, d).mean(axis=1)
    return means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(len(means))
