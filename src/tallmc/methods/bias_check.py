"""Measure the bias of a run of any composition, with pairs of chains from where the run ended.

The pairs take at most a fifth of the steps of the run. Each pair first runs until the fine chain
has reached its own law, then measures the difference. How long that takes follows from the
effective sample size of the run. Where the bias cannot be measured, the account says why.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..core.outcome import Outcome
from ..core.supervision import stage
from ..engine.kernel import BoundKernel, Kernel
from ..engine.run import Run
from ..schedule import Constant, Cyclical, in_precision
from ..statistics.convergence import Agreement, agreement
from .account import Account
from .base import AbstractMethod
from .pair import PairRun

_SHARE = 0.2
_STEPS_PER_PAIR = 3  # one coarse step and two fine steps
_FEWEST_PAIRS, _MOST_PAIRS = 4, 16
# In autocorrelation times: how long a fine chain takes to reach its own law, how long pairs must at
# least run after that, and how long they run at most.
_BURN_IN, _LEAST, _MOST = 3.0, 2.0, 50.0


def with_measured_bias(
    account: Account, method: AbstractMethod, bound: BoundKernel, run: Run, seed: int
) -> tuple[Account, int]:
    """Return the account of a finished run with its bias, and the rows that the pairs touched."""
    failed = any(outcome is not Outcome.OK for outcome in run.outcomes())
    if failed or account.exact or account.bias is not None or account.doubts:
        return account, 0
    if account.unmeasured is not None:  # no measurement would show it
        return account, 0
    if not isinstance(bound.kernel, Kernel):
        reason = "pairs of chains cannot measure the bias of this method."
        return dataclasses.replace(account, unmeasured=reason), 0
    try:
        plan = _PairPlan.of(run)
    except _NotMeasurable as reason:
        return dataclasses.replace(account, unmeasured=str(reason)), 0
    stage("measuring the bias with pairs of chains")
    kernel = eqx.tree_at(lambda k: k.schedule, bound.composition, _steady(run))
    chosen = np.arange(plan.pairs) % len(run.start)
    pairs = PairRun(
        BoundKernel(kernel, bound.posterior),
        run.last_positions()[chosen],
        burn_in=plan.burn_in,
        draws=plan.draws,
        thin=run.thin,
        seed=seed,
        memory=jax.tree.map(lambda leaf: leaf[chosen], run.state.chains.memory),
    )
    if pairs.failed:
        doubt = "a chain failed while the bias was measured. Make the step size smaller."
        return account.doubting(doubt), pairs.n_row_evals
    unseen = method.unseen_by_pairs
    missing = (
        None
        if unseen is None
        else f"{unseen} need not vanish with the step size, so pairs of chains may not show it. "
        "Compare with a method without it."
    )
    found = dataclasses.replace(account, bias=pairs.bias(plan.batches), unmeasured=missing)
    return found, pairs.n_row_evals


class _NotMeasurable(Exception):
    """Why pairs cannot measure the bias of a run."""


@dataclasses.dataclass(frozen=True)
class _PairPlan:
    """Number and length of the pairs."""

    pairs: int
    burn_in: int
    """Steps of the coarse chains."""
    draws: int
    batches: int
    """Batches per chain, each at least two autocorrelation times long."""

    @classmethod
    def of(cls, run: Run) -> _PairPlan:
        positions = run.positions()
        n_chains, n_draws, _ = positions.shape
        if n_draws < 4:
            raise _NotMeasurable("the run is too short to measure its bias. Run longer.")
        found = agreement(positions)
        if not found.reached:
            raise _NotMeasurable("the bias cannot be measured before the chains agree. Run longer.")
        pairs = min(max(n_chains, _FEWEST_PAIRS), _MOST_PAIRS)
        time = _autocorrelation_time(found, n_chains, n_draws)
        affordable = _SHARE / _STEPS_PER_PAIR * n_chains * n_draws / pairs
        needed = (_BURN_IN + _LEAST) * time
        if affordable < needed:
            raise _NotMeasurable(
                "the run is too short to measure its bias within a fifth of its cost. "
                f"Run it {needed / affordable:.1f} times as long."
            )
        draws = int(min(affordable - _BURN_IN * time, _MOST * time))
        burn_in = run.kernel.schedule.steps_until(math.ceil(_BURN_IN * time) * run.thin)
        return cls(pairs, int(burn_in), draws, max(1, min(8, int(draws / (2 * time)))))


def _autocorrelation_time(found: Agreement, n_chains: int, n_draws: int) -> float:
    """Draws of one chain per effective draw of the slowest parameter; at least 1."""
    return max(1.0, n_chains * n_draws / float(found.ess.min()))


def _steady(run: Run) -> Any:
    """A schedule for the pairs: that of the run, or the mean step that its draws have seen.

    Draws count in proportion to their step size, so a bias of order ε is that of Σε²/Σε.
    """
    schedule = run.kernel.schedule
    if isinstance(schedule, Constant | Cyclical):
        return schedule
    steps = np.asarray(run.sample_stats()["step_size"], np.float64)
    mean = float(np.sum(steps**2) / np.sum(steps))
    return in_precision(Constant(mean), jnp.asarray(run.start).dtype)
