"""When a run ends.

The goal is a number of draws or of effective draws. A limit on time or rows can end the run before
the goal.
"""

from __future__ import annotations

import contextlib
import math
import signal
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..core.errors import InvalidInput, SamplingWarning, check_int, check_number
from ..core.supervision import Clock
from ..statistics.convergence import Agreement, agreement
from .progress import Progress, ProgressTracker
from .run import Run

_FIRST_DRAWS = 200
_SMALLEST_GROWTH, _LARGEST_GROWTH_NEAR_GOAL, _LARGEST_GROWTH = 1.2, 2.0, 8.0
_LONGER_IF_NOT_SATISFIED = 4
Judgement = Callable[[np.ndarray, Agreement], bool]
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
    run: Run,
    goal: Goal,
    listeners: Sequence[Callable[[Progress], None]] = (),
    satisfied: Judgement = lambda positions, agreed: True,
    clock: Clock | None = None,
) -> str | None:
    """Run to the goal; return what ended the run before it, or None.

    The limit on seconds counts those of the `clock`, by default from now on.

    A goal in effective draws is reached when there are enough of them and
    `satisfied(positions, agreed)`, a judgement of the draws of all running chains, is true. A
    judgement that stays false ends the run, normally, at four times the draws with which there were
    enough effective draws.

    Unless a limit or a signal ends the run, the number of draws depends on the draws alone. A
    resumed run therefore makes the same decisions.
    """
    search = _Search(run, goal, listeners, satisfied, clock or Clock())
    stopped_by = search.run_to_goal()
    search.report_end(stopped_by)
    return stopped_by


class _Search:
    """A run on its way to its goal."""

    def __init__(
        self,
        run: Run,
        goal: Goal,
        listeners: Sequence[Callable[[Progress], None]],
        satisfied: Judgement,
        clock: Clock,
    ):
        self.run, self.goal, self.listeners, self.satisfied = run, goal, listeners, satisfied
        self.clock = clock
        self.tracker = ProgressTracker(run, goal.draws, goal.ess)
        self.ess: float | None = None
        """Effective draws when the goal was last checked."""

    def run_to_goal(self) -> str | None:
        run, goal, draws, most_draws = self.run, self.goal, self.goal.first_draws, math.inf
        while True:
            received = run.run_towards(
                draws,
                self._report if self.listeners else None,
                lambda: self._limit_reached() is not None,
            )
            if received.number is not None:
                _warn_of_end(run, "interrupted")
                return _SIGNAL_NAMES.get(received.number, "a signal")
            if run.completed < draws:
                limit = self._limit_reached()
                if limit is not None and not run.completed:
                    _warn_of_end(run, f"stopped by {limit}")
                return limit
            if goal.ess is None:
                return None
            try:
                positions = _of_running_chains(run.positions()[:, :draws])
                if not len(positions):
                    return None
                agreed = agreement(positions)
                self.ess = float(agreed.ess.min())
                enough = self.ess >= goal.ess
                if enough and (draws >= most_draws or self.satisfied(positions, agreed)):
                    return None
            except KeyboardInterrupt:
                return _SIGNAL_NAMES[signal.SIGINT]
            if enough:
                most_draws = min(most_draws, _LONGER_IF_NOT_SATISFIED * draws)
            elif draws >= most_draws:
                return None
            draws = math.ceil(min(most_draws, draws * _growth(goal.ess / max(self.ess, 1.0))))

    def report_end(self, stopped_by: str | None) -> None:
        """Report the final state. The run is over, so Ctrl-C in a listener changes nothing."""
        if self.listeners:
            ess = self.ess if stopped_by is None else None  # it may have grown since
            progress = self.tracker.last_look(self.run, stopped_by, ess)
            for listener in self.listeners:
                with contextlib.suppress(KeyboardInterrupt):
                    listener(progress)

    def _report(self) -> None:
        progress = self.tracker.look(self.run)
        for listener in self.listeners:
            listener(progress)

    def _limit_reached(self) -> str | None:
        goal, run = self.goal, self.run
        if goal.max_seconds is not None and self.clock.seconds >= goal.max_seconds:
            return f"the limit of {goal.max_seconds:g} seconds"
        if goal.max_rows is not None and run.rows_touched() >= goal.max_rows:
            return f"the limit of {goal.max_rows:,} rows"
        return None


def _growth(wanted: float) -> float:
    """How many times as many draws to have before the next look, given what the last look wanted.

    The smallest of many noisy estimates from few draws is too small. Near the goal, a run that is
    made too long costs more than another look.
    """
    if wanted > _LARGEST_GROWTH:
        return _LARGEST_GROWTH
    return min(_LARGEST_GROWTH_NEAR_GOAL, max(_SMALLEST_GROWTH, 1.1 * wanted))


def _warn_of_end(run: Run, how: str) -> None:
    done = (
        f"{how} after {run.completed} of {run.draws} draws; these draws are returned."
        if run.completed
        else f"{how} in step {run.step} of {run.burn_in} of the burn-in; "
        "there are no draws yet, and none are returned."
    )
    warnings.warn(done, SamplingWarning, stacklevel=4)


def _of_running_chains(positions: np.ndarray) -> np.ndarray:
    """The draws of the chains that have not failed."""
    running = np.isfinite(positions[:, -1]).all(axis=1)
    return positions if running.all() else positions[running]
