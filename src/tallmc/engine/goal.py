"""When a run ends.

The goal is a number of draws or of effective draws. A limit on time or rows can end the run before
the goal.
"""

from __future__ import annotations

import math
import signal
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..core.errors import InvalidInput, SamplingWarning, check_int, check_number
from ..statistics.convergence import effective_draws
from .progress import Progress, ProgressTracker
from .run import Run

_FIRST_DRAWS = 200
_LARGEST_GROWTH = 8
_SIGNAL_NAMES: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Goal(NamedTuple):
    """The goal and the limits of a run."""

    draws: int | None
    """Draws per chain; None if the goal is an effective sample size."""
    ess: float | None
    """Effective draws per parameter, over all chains."""
    max_seconds: float | None
    max_rows: int | None

    @classmethod
    def of(
        cls, draws: int | None, ess: float | None, max_seconds: float | None, max_rows: int | None
    ) -> Goal:
        """Check the user's values."""
        if draws is not None and ess is not None:
            raise InvalidInput(
                "ess", "be left out when draws are given", ess, "Give one of the two."
            )
        return cls(
            None if draws is None else check_int("draws", draws, 1),
            None if ess is None else check_number("ess", ess, 0, low_open=True),
            None
            if max_seconds is None
            else check_number("max_seconds", max_seconds, 0, low_open=True),
            None if max_rows is None else check_int("max_rows", max_rows, 1),
        )

    @property
    def first_draws(self) -> int:
        """Draws per chain before the goal is checked for the first time."""
        return _FIRST_DRAWS if self.draws is None else self.draws


def run_until(
    run: Run, goal: Goal, listeners: Sequence[Callable[[Progress], None]] = ()
) -> str | None:
    """Run to the goal; return what ended the run before it, or None.

    Unless a limit or a signal ends the run, the number of draws depends on the draws alone. A
    resumed run therefore makes the same decisions.
    """

    def limit_reached() -> str | None:
        if goal.max_seconds is not None and run.seconds >= goal.max_seconds:
            return f"the limit of {goal.max_seconds:g} seconds"
        if goal.max_rows is not None and run.rows_touched() >= goal.max_rows:
            return f"the limit of {goal.max_rows:,} rows"
        return None

    tracker = ProgressTracker(run, goal.draws, goal.ess)

    def report() -> None:
        progress = tracker.look(run)
        for listener in listeners:
            listener(progress)

    draws = goal.first_draws
    while True:
        received = run.run_towards(
            draws, report if listeners else None, lambda: limit_reached() is not None
        )
        if received.number is not None:
            _warn_of_interrupt(run)
            return _SIGNAL_NAMES.get(received.number, "a signal")
        if run.completed < draws:
            return limit_reached()
        if goal.ess is None:
            return None
        try:
            reached = _ess_reached(run.positions()[:, :draws])
        except KeyboardInterrupt:
            return _SIGNAL_NAMES[signal.SIGINT]
        if reached is None:
            return None
        if reached >= goal.ess:
            return None
        wanted = goal.ess / max(reached, 1.0)
        draws = math.ceil(draws * min(_LARGEST_GROWTH, max(1.2, 1.1 * wanted)))


def _warn_of_interrupt(run: Run) -> None:
    done = (
        f"interrupted after {run.completed} of {run.draws} draws; these draws are returned."
        if run.completed
        else f"interrupted in step {run.step} of {run.burn_in} of the burn-in; "
        "there are no draws yet, and none are returned."
    )
    warnings.warn(done, SamplingWarning, stacklevel=4)


def _ess_reached(positions: np.ndarray) -> float | None:
    """Effective draws of the chains that have not failed; None if all have failed."""
    running = np.isfinite(positions[:, -1]).all(axis=1)
    return (
        effective_draws(positions if running.all() else positions[running])
        if running.any()
        else None
    )
