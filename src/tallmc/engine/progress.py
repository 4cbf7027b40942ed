"""Progress of a run, for displays and callbacks."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..core.outcome import Outcome
from ..statistics.convergence import effective_draws
from ..statistics.thinned_history import ThinnedHistory
from .run import Run

_TRACKED_PARAMETERS = 32
_TRACKED_DRAWS = 500
_FEWEST_DRAWS = 8
_SHARE = 0.01  # largest share of the run time that is spent on effective sample sizes


class ChainFacts(NamedTuple):
    """Facts about one chain in the last block."""

    outcome: Outcome
    step_size: float
    batch_size: float
    """Mean number of rows per step."""
    grad_noise: float | None
    """Trace of the covariance of the gradient estimate; None if the run does not measure it."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """The argument of a callback: made in the preparation, between calls of the compiled loop, and
    at the end.

    **Arguments:**

    - `step`, `n_steps`: steps done and steps planned, per chain.
    - `draws`: draws completed, per chain.
    - `n_row_evals`: rows touched by all chains.
    - `seconds`: time spent in steps; in the preparation, time since its beginning.
    - `n_rows`: number of rows of the data.
    - `wanted_draws`: draws wanted per chain; None if the goal is an effective sample size.
    - `wanted_ess`: effective draws wanted per parameter; None if the goal is a number of draws.
    - `chains`: outcome, step size, batch size and gradient noise of each chain; empty in the
      preparation.
    - `tracker`: the source of `ess` and `steps_per_second`.
    - `stage`: what the preparation is doing, such as "finding the mode"; then "sampling", and in
      the last report "finished" or "stopped by ...".
    - `ended`: whether this is the last report. It describes the state in which the run ended.

    >>> now = Progress(500, 1_000, 50, 20_000, 2.5, 10_000, 100, None, (), tracker=None)
    >>> now.passes
    2.0
    """

    step: int
    n_steps: int
    draws: int
    n_row_evals: int
    seconds: float
    n_rows: int
    wanted_draws: int | None
    wanted_ess: float | None
    chains: tuple[ChainFacts, ...]
    tracker: ProgressTracker | None = dataclasses.field(repr=False, compare=False)
    stage: str = "sampling"
    ended: bool = False

    @classmethod
    def preparing(
        cls,
        stage: str,
        seconds: float,
        n_rows: int,
        wanted_draws: int | None,
        wanted_ess: float | None,
    ) -> Progress:
        """Report a stage of the preparation."""
        return cls(0, 0, 0, 0, seconds, n_rows, wanted_draws, wanted_ess, (), None, stage)

    @property
    def is_preparing(self) -> bool:
        """Whether no chain runs yet."""
        return not self.chains

    @property
    def steps_per_second(self) -> float:
        """Steps per second and chain."""
        return 0.0 if self.tracker is None else self.tracker.pace(self)

    @property
    def passes(self) -> float:
        """Rows touched, divided by the number of rows of the data."""
        return self.n_row_evals / self.n_rows

    @functools.cached_property
    def ess(self) -> float | None:
        """Effective draws so far; None while unknown.

        The value is the minimum over at most 32 parameters, estimated from fewer than 1,000 evenly
        spaced draws per chain.
        """
        return None if self.tracker is None else self.tracker.ess(self.seconds)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the goal; None while unknown."""
        if self.ended:
            return 0.0
        if self.wanted_draws is not None:
            return (
                (self.n_steps - self.step) / self.steps_per_second
                if self.steps_per_second
                else None
            )
        if self.wanted_ess is None or not self.ess:
            return None
        return max(0.0, self.seconds * (self.wanted_ess / self.ess - 1))


class ProgressTracker:
    """Makes the progress reports of a run, and keeps a thinned history of its draws."""

    def __init__(self, run: Run, wanted_draws: int | None, wanted_ess: float | None):
        chains, dim = run.start.shape
        self.wanted = wanted_draws, wanted_ess
        self.parameters = np.linspace(0, dim - 1, min(dim, _TRACKED_PARAMETERS)).astype(int)
        self.history = ThinnedHistory(_TRACKED_DRAWS, chains, len(self.parameters))
        self.first_step, self.first_seconds = run.step, run.seconds
        self.spent = 0.0
        self.last: float | None = None

    def look(self, run: Run) -> Progress:
        """Report the progress of the run."""
        block = run.recent()
        if block is not None:
            self.history.add(block.positions[:, :, self.parameters])
        return self._report(run)

    def last_look(self, run: Run, stopped_by: str | None, ess: float | None) -> Progress:
        """Report the state in which the run ended; `ess` is None if it has not been computed."""
        if ess is None:
            positions = run.positions()
            every = max(1, positions.shape[1] // _TRACKED_DRAWS)
            ess = _smallest_ess(positions[:, ::every, self.parameters])
        self.last, self.spent = ess, np.inf
        stage = "finished" if stopped_by is None else f"stopped by {stopped_by}"
        return dataclasses.replace(self._report(run), stage=stage, ended=True)

    def _report(self, run: Run) -> Progress:
        block = run.recent()
        means = {
            name: values.mean(axis=1)
            for name, values in ({} if block is None else block.stats).items()
            if name in ("batch_size", "grad_noise") and values.shape[1]
        }
        sizes, noise = means.get("batch_size"), means.get("grad_noise")
        step_now = float(run.kernel.schedule(jnp.int32(max(run.step - 1, 0))))
        outcomes, rows_touched = run.outcomes(), run.rows_touched()
        of_run = rows_touched / max(run.step * len(outcomes), 1)  # in the burn-in
        facts = tuple(
            ChainFacts(
                outcome,
                step_now,
                float(of_run if sizes is None else sizes[chain]),
                None if noise is None else float(noise[chain]),
            )
            for chain, outcome in enumerate(outcomes)
        )
        so_far = run.step, run.n_steps, run.completed, rows_touched, run.seconds
        return Progress(*so_far, run.rows.n_rows, *self.wanted, facts, self)

    def pace(self, now: Progress) -> float:
        """Steps per second and chain in this process."""
        took = now.seconds - self.first_seconds
        return (now.step - self.first_step) / took if took > 0 else 0.0

    def ess(self, seconds: float) -> float | None:
        """Effective draws so far; the last value if the time for estimates is spent."""
        if self.history.kept.shape[1] < _FEWEST_DRAWS or self.spent > _SHARE * seconds:
            return self.last
        began = time.perf_counter()
        self.last = _smallest_ess(self.history.kept)
        self.spent += time.perf_counter() - began
        return self.last


def _smallest_ess(kept: Float[np.ndarray, "chains draws d"]) -> float | None:
    running = np.isfinite(kept).all(axis=(1, 2))
    if kept.shape[1] < _FEWEST_DRAWS:
        return None
    return effective_draws(kept[running]) if running.any() else None
