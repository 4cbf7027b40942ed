"""When a run is long enough: so many draws, or so many effective ones, or a limit on time or rows, whatever comes first."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ._errors import InvalidInput, check_int, check_number
from ._kept import by_parameter
from ._run import Run
from .progress.facts import Progress, Watch

_FIRST_DRAWS = 200
_LARGEST_STRIDE = 8
_SIGNALS: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


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


def run_until(run: Run, goal: Goal, listeners: Sequence[Callable[[Progress], None]] = ()) -> str | None:
    """Run to the goal; returns what stopped it short of that, if something did.

    How far to go is decided from the draws alone: a run that was cut and goes on from there decides the same.
    """

    def limit() -> str | None:
        if goal.max_seconds is not None and run.seconds >= goal.max_seconds:
            return f"the limit of {goal.max_seconds:g} seconds"
        if goal.max_rows is not None and run.rows_touched() >= goal.max_rows:
            return f"the limit of {goal.max_rows:,} rows"
        return None

    watch = Watch(run, goal.draws, goal.ess)

    def tell() -> None:
        progress = watch.look(run)
        for hear in listeners:
            hear(progress)

    draws = goal.first_draws
    while True:
        run.run_to(draws, tell if listeners else None, lambda: limit() is not None)
        if run.interrupted is not None or run.completed < draws:
            return limit() if run.interrupted is None else _SIGNALS.get(run.interrupted, "a signal")
        if goal.ess is None:
            return None
        try:
            reached = _reached(run.positions()[:, :draws])
        except KeyboardInterrupt:
            return _SIGNALS[signal.SIGINT]
        if reached is None:
            return None
        if reached >= goal.ess:
            return None
        wanted = goal.ess / max(reached, 1.0)
        draws = math.ceil(draws * min(_LARGEST_STRIDE, max(1.2, 1.1 * wanted)))


def effective_draws(positions: np.ndarray) -> float:
    """The smallest effective sample size of a parameter."""
    from .diagnose.convergence import ess

    return float(np.min(by_parameter(ess, positions)))


def _reached(positions: np.ndarray) -> float | None:
    """Effective draws by the chains that got so far; None when none did."""
    going = np.isfinite(positions[:, -1]).all(axis=1)
    return effective_draws(positions if going.all() else positions[going]) if going.any() else None
