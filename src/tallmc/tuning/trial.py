"""One candidate's chains: run for a share of the budget, go on from there in the next round, keep some of their draws."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Float

from .._kept import InMemory
from .._kernel import AbstractKernel
from .._method import Method
from .._outcome import Outcome
from .._run import Run
from .._trail import Trail
from ..diagnose.draws_ksd import thinned
from .score import Score

_BURN_IN = 1 / 11  # of all draws: a tenth of those that follow, as `sample` has it from an anchor
_SEGMENT_FLOATS = 2**22
_MANY_DRAWS = 10_000


class Trial:
    """A candidate on its way through the rounds."""

    def __init__(self, method: Method, kernel: AbstractKernel, start: Float[Array, "chains d"], seed: int, most: int):
        self.method = method
        self.kept = InMemory()
        self.run = Run(kernel, seed, start, burn_in=0, thin=1, draws=0, kept=self.kept)
        self.run.compile()
        self.trail = Trail(most, *start.shape)
        self.rounds, self.ksd = 0, np.inf
        self.scoring_rows, self.seconds = 0, 0.0

    @property
    def failed(self) -> bool:
        """Whether a chain has failed: what the others drew is worth no more."""
        return bool(np.any(np.asarray(self.run.state.outcome) != Outcome.OK))

    @property
    def n_row_evals(self) -> int:
        return self.run.rows_touched() + self.scoring_rows

    def run_for_rows(self, rows: float) -> None:
        """Run until so many rows more were touched."""
        kernel, cost = self.run.kernel, None
        if kernel.rows_per_step is not None:
            steps = int(kernel.schedule.steps_until(_MANY_DRAWS))
            of_chain = kernel.rows_per_step * steps + kernel.posterior.n_rows * int(kernel.passes_before(np.asarray(steps)))
            cost = len(self.run.start) * of_chain / _MANY_DRAWS
        self._run_for(rows, self.run.rows_touched, cost)

    def run_for_seconds(self, seconds: float) -> None:
        """Run for so long."""
        if self.run.step == 0:
            self._go_on(1)  # what is still compiled in the first step is not timed
        self._run_for(seconds, time.perf_counter, None)

    def draws(self, most: int) -> Float[np.ndarray, "K d"]:
        """At most so many draws of all chains, evenly spaced, without the burn-in.

        Their number is a power of two, so that what is compiled for one candidate mostly serves the others.
        """
        kept = self.trail.kept[:, int(_BURN_IN * self.trail.kept.shape[1]) :]
        return thinned(kept, power_of_two(min(most, kept.shape[0] * kept.shape[1])))

    def rate(self, score: Score, most: int) -> None:
        """Score at most so many draws, at the end of a round."""
        draws = self.draws(most)
        self.rounds, self.ksd = self.rounds + 1, np.inf
        if len(draws) and not self.failed:
            self.ksd = score(draws)
            self.scoring_rows += len(draws) * score.rows_per_draw

    def _run_for(self, amount: float, spent: Callable[[], float], cost_of_draw: float | None) -> None:
        """Run until `amount` more is `spent`. A cost that is not known is measured, on twice as many draws each time."""
        clock, began, first = time.perf_counter(), spent(), self.run.completed
        while not self.failed:
            left, draws = amount - (spent() - began), self.run.completed - first
            if cost_of_draw is not None:
                fitting = int(left / cost_of_draw)
            else:
                fitting = min(draws, int(left * draws / (amount - left))) if draws else 1
            if fitting < 1:
                break
            self._go_on(min(fitting, max(1, _SEGMENT_FLOATS // self.run.start.size)))
        self.seconds += time.perf_counter() - clock

    def _go_on(self, draws: int) -> None:
        self.run.run_to(self.run.completed + draws)
        if self.run.interrupted:
            raise KeyboardInterrupt
        self.trail.add(self.run.positions())
        self.kept.forget()


def power_of_two(most: int) -> int:
    """The largest one up to `most`; zero for zero.

    >>> [power_of_two(most) for most in (0, 1, 7, 8)]
    [0, 1, 4, 8]
    """
    return 1 << (most.bit_length() - 1) if most else 0
