"""When a run is long enough: so many draws, or so many effective ones, or a limit on time or rows, whatever comes first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ._errors import InvalidInput, check_int, check_number
from ._outcome import Outcome
from ._run import Progress, Run

_FIRST_DRAWS = 200
_LARGEST_STRIDE = 8


class Goal(NamedTuple):
    draws: int | None
    """Of each chain; None to go by the effective sample size."""
    ess: float | None
    """Of every parameter, over all chains."""
    max_seconds: float | None
    max_rows: int | None

    @classmethod
    def of(cls, draws: int | None, ess: float | None, max_seconds: float | None, max_rows: int | None) -> Goal:
        """The goal as the user gave it, checked."""
        if draws is not None and ess is not None:
            raise InvalidInput("ess", "be left out when draws are given", ess, "Give one of the two.")
        return cls(
            None if draws is None else check_int("draws", draws, 1),
            None if ess is None else check_number("ess", ess, 0, low_open=True),
            None if max_seconds is None else check_number("max_seconds", max_seconds, 0, low_open=True),
            None if max_rows is None else check_int("max_rows", max_rows, 1),
        )

    @property
    def first_draws(self) -> int:
        return _FIRST_DRAWS if self.draws is None else self.draws


def run_until(run: Run, goal: Goal, callback: Callable[[Progress], None] | None) -> str | None:
    """Run to the goal; returns what stopped it short of that, if something did."""
    began = time.perf_counter()

    def limit() -> str | None:
        if goal.max_seconds is not None and time.perf_counter() - began >= goal.max_seconds:
            return f"the limit of {goal.max_seconds:g} seconds"
        if goal.max_rows is not None and run.rows_touched() >= goal.max_rows:
            return f"the limit of {goal.max_rows:,} rows"
        return None

    draws = goal.first_draws
    while True:
        run.run_to(draws, callback, lambda: limit() is not None)
        if run.interrupted or run.completed < draws:
            return "Ctrl-C" if run.interrupted else limit()
        if goal.ess is None or not (ok := _completed(run)).any():
            return None
        reached = effective_draws(run.positions()[ok])
        if reached >= goal.ess:
            return None
        wanted = goal.ess / max(reached, 1.0)
        draws = math.ceil(draws * min(_LARGEST_STRIDE, max(1.2, 1.1 * wanted)))


def effective_draws(positions: np.ndarray) -> float:
    """The smallest effective sample size of a parameter."""
    from .diagnose.convergence import ess

    return float(np.min(ess(positions)))


def _completed(run: Run) -> np.ndarray:
    return np.array([outcome is Outcome.OK for outcome in run.outcomes()])
