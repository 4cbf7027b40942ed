"""What is known of a run while it goes on: the facts that displays show and callbacks hear."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._outcome import Outcome
from .._trail import Trail

if TYPE_CHECKING:
    from .._run import Run

_PARAMETERS = 32
_DRAWS = 500
_SHARE = 0.01  # of the run, to be spent on effective sample sizes


class ChainFacts(NamedTuple):
    """Of one chain, in the last block."""

    outcome: Outcome
    step_size: float
    batch_size: float
    """Rows a step, on average."""
    grad_noise: float | None
    """Trace of the covariance of the gradient estimate, where the run measures it."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a callback hears after each host block."""

    step: int
    n_steps: int
    draws: int
    """Of each chain."""
    n_row_evals: int
    """Rows touched by all chains."""
    seconds: float
    """Spent in steps."""
    n_rows: int
    """Of the data."""
    wanted_draws: int | None
    """None when the run goes by the effective sample size."""
    wanted_ess: float | None
    chains: tuple[ChainFacts, ...]
    watch: Watch = dataclasses.field(repr=False, compare=False)

    @property
    def steps_per_second(self) -> float:
        """Of each chain."""
        return self.watch.pace(self)

    @property
    def passes(self) -> float:
        """Rows touched, in passes over the data."""
        return self.n_row_evals / self.n_rows

    @functools.cached_property
    def ess(self) -> float | None:
        """Effective draws so far: the least of up to 32 parameters, from 500 draws of each chain; None while it is not known."""
        return self.watch.ess(self.seconds)

    @property
    def seconds_left(self) -> float | None:
        """None while it cannot be told."""
        if self.wanted_draws is not None:
            return (self.n_steps - self.step) / self.steps_per_second if self.steps_per_second else None
        if self.wanted_ess is None or not self.ess:
            return None
        return max(0.0, self.seconds * (self.wanted_ess / self.ess - 1))


class Watch:
    """Follows a run from block to block."""

    def __init__(self, run: Run, wanted_draws: int | None, wanted_ess: float | None):
        chains, dim = run.start.shape
        self.wanted = wanted_draws, wanted_ess
        self.parameters = np.linspace(0, dim - 1, min(dim, _PARAMETERS)).astype(int)
        self.trail = Trail(_DRAWS, chains, len(self.parameters))
        self.first_step, self.first_seconds = run.step, run.seconds
        self.spent = 0.0
        self.last: float | None = None

    def look(self, run: Run) -> Progress:
        block = run.last_block
        self.trail.add(block.positions[:, :, self.parameters])
        sizes, noise = block.stats["batch_size"], block.stats.get("grad_noise")
        step_now = float(run.kernel.schedule(jnp.int32(max(run.step - 1, 0))))
        facts = tuple(
            ChainFacts(
                outcome,
                step_now,
                float(sizes[chain].mean()) if sizes.shape[1] else float(run.kernel.most_rows),
                float(noise[chain].mean()) if noise is not None and noise.shape[1] else None,
            )
            for chain, outcome in enumerate(run.outcomes())
        )
        so_far = run.step, run.n_steps, run.completed, run.rows_touched(), run.seconds
        return Progress(*so_far, run.kernel.posterior.n_rows, *self.wanted, facts, self)

    def pace(self, now: Progress) -> float:
        """Steps a second, of this process."""
        took = now.seconds - self.first_seconds
        return (now.step - self.first_step) / took if took > 0 else 0.0

    def ess(self, seconds: float) -> float | None:
        if self.trail.kept.shape[1] < 8 or self.spent > _SHARE * seconds:
            return self.last
        began = time.perf_counter()
        self.last = _smallest_ess(self.trail.kept)
        self.spent += time.perf_counter() - began
        return self.last


def _smallest_ess(kept: Float[np.ndarray, "chains draws d"]) -> float | None:
    from .._goal import effective_draws

    going = np.isfinite(kept).all(axis=(1, 2))
    try:
        return effective_draws(kept[going]) if going.any() else None
    except ImportError:  # no ArviZ
        return None
