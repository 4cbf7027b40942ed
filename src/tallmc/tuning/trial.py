"""The chains of one candidate: each round continues them for a share of the budget.

Only a thinned history of their draws is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Float

from ..core.outcome import Outcome
from ..diagnose.draws_ksd import thinned
from ..engine.kernel import BoundKernel
from ..engine.run import Run, chain_keys
from ..engine.sinks import MemorySink
from ..methods.method import Method
from ..statistics.thinned_history import ThinnedHistory
from .score import Score

_BURN_IN = 1 / 11  # share of all draws: a tenth of the rest, as in `sample` from an anchor
_SEGMENT_FLOATS = 2**22
_COST_DRAWS = 10_000  # the cost per draw is averaged over this many draws


class Trial:
    """The state of one candidate across rounds."""

    def __init__(
        self,
        method: Method,
        kernel: BoundKernel,
        start: Float[Array, "chains d"],
        seed: int,
        most: int,
    ):
        self.method = method
        self.sink = MemorySink()
        keys = chain_keys(seed, len(start))
        self.run = Run(kernel, keys, start, burn_in=0, thin=1, draws=0, sink=self.sink)
        self.run.compile()
        self.history = ThinnedHistory(most, *start.shape)
        self.rounds, self.ksd = 0, np.inf
        self.scoring_rows, self.seconds = 0, 0.0

    @property
    def failed(self) -> bool:
        """Whether any chain failed. The draws of the other chains are then not scored either."""
        return bool(np.any(np.asarray(self.run.state.outcome) != Outcome.OK))

    @property
    def n_row_evals(self) -> int:
        """Rows touched by the chains and by scoring."""
        return self.run.rows_touched() + self.scoring_rows

    def run_for_rows(self, rows: float) -> None:
        """Run until `rows` more rows have been touched."""
        kernel, cost = self.run.kernel, None
        if kernel.rows_per_step is not None:
            steps = int(kernel.schedule.steps_until(_COST_DRAWS))
            passes = int(kernel.passes_before(np.asarray(steps)))
            rows_per_chain = kernel.rows_per_step * steps + self.run.rows.n_rows * passes
            cost = len(self.run.start) * rows_per_chain / _COST_DRAWS
        self._run_for(rows, self.run.rows_touched, cost)

    def run_for_seconds(self, seconds: float) -> None:
        """Run for `seconds` seconds."""
        if self.run.step == 0:
            self._advance(1)  # the first step may still compile; it is not timed
        self._run_for(seconds, time.perf_counter, None)

    def draws(self, most: int) -> Float[np.ndarray, "K d"]:
        """At most `most` draws of all chains, evenly spaced, without the burn-in.

        Their number is a power of two, so that candidates mostly share compiled programs.
        """
        kept = self.history.kept[:, int(_BURN_IN * self.history.kept.shape[1]) :]
        return thinned(kept, power_of_two(min(most, kept.shape[0] * kept.shape[1])))

    def rate(self, score: Score, most: int) -> None:
        """End a round: score at most `most` draws."""
        draws = self.draws(most)
        self.rounds, self.ksd = self.rounds + 1, np.inf
        if len(draws) and not self.failed:
            self.ksd = score(draws)
            self.scoring_rows += len(draws) * score.rows_per_draw

    def _run_for(
        self, amount: float, spent: Callable[[], float], cost_per_draw: float | None
    ) -> None:
        """Run until `spent` has grown by `amount`.

        An unknown cost per draw is measured as the number of draws doubles.
        """
        clock, began, first = time.perf_counter(), spent(), self.run.completed
        while not self.failed:
            left, draws = amount - (spent() - began), self.run.completed - first
            if cost_per_draw is not None:
                fitting = int(left / cost_per_draw)
            else:
                fitting = min(draws, int(left * draws / (amount - left))) if draws else 1
            if fitting < 1:
                break
            self._advance(min(fitting, max(1, _SEGMENT_FLOATS // self.run.start.size)))
        self.seconds += time.perf_counter() - clock

    def _advance(self, draws: int) -> None:
        self.run.run_to(self.run.completed + draws)
        self.history.add(self.run.positions())
        self.sink.forget()


def power_of_two(most: int) -> int:
    """The largest power of two up to `most`, or zero if `most` is zero.

    >>> [power_of_two(most) for most in (0, 1, 7, 8)]
    [0, 1, 4, 8]
    """
    return 1 << (most.bit_length() - 1) if most else 0
