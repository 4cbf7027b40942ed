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
from jaxtyping import Array, Float

from .._core.arrays import HostDraws
from .._core.errors import Outcome
from .._core.statistics import agreement
from .._core.supervision import stage
from .._engine.kernel import BoundKernel, Kernel
from .._engine.run import Run, chain_keys
from ..schedule import Constant, Cyclical, halved, in_precision
from .abstract import AbstractMethod, Account, Bias
from .trajectories import SurrogateKernel, checked_after_run

# Measure the bias of step size and gradient noise with pairs of chains of step size ε and ε/2.
#
# While the coarse chain of a pair takes one step, the fine chain takes two. Both are driven by the
# same noise, (η₁ + η₂)/√2 for the coarse chain, and the coarse step sees the rows of the first fine
# step. The chains stay close together, so the difference of their averages has far less Monte-Carlo
# error than either average. Each chain alone has the law of its own step size.
#
# The coarse and the fine chains are two runs with the same keys, and run the same compiled programs
# as the chains of the method.
#
# A bias c₁ε + c₂ε² + … makes the averages differ by c₁ε/2 + ¾c₂ε². Twice the difference has the
# whole first term of the coarse chain's bias and more than its second term. Where the first term is
# cε^p with another p (`AbstractDynamics.bias_order`), the factor 1/(1 − 2^−p) takes the place of 2.
# A bias that does not vanish with the step size remains unseen (`unseen_by_pairs` of a dynamics).


_PAIRS_PURPOSE = 2  # separates the keys of pairs from the keys of the run


class PairRun:
    """Pairs of chains that have run from `start`, the coarse one at the step size of the kernel.

    `burn_in` and `thin` count steps of the coarse chains. `carried` is what each chain has learned
    before, as in the state of a run; None starts from nothing. Pairs that start where others ended
    need another `number`, which gives them other keys.
    """

    def __init__(
        self,
        bound: BoundKernel,
        start: Float[Array, "chains d"],
        *,
        burn_in: int,
        n_draws: int,
        thin: int = 1,
        seed: int = 0,
        carried: Any = None,
        number: int = 0,
    ):
        keys = chain_keys(seed, len(start), _PAIRS_PURPOSE + (number << 8))
        composition = bound.composition
        self._bias_order = composition.dynamics.bias_order
        finer = eqx.tree_at(
            lambda kernel: (kernel.schedule, kernel.dynamics),
            composition,
            (halved(composition.schedule), composition.dynamics.finer()),
        )
        fine = BoundKernel(finer, bound.posterior)
        self.fine = Run(fine, keys, start, 2 * burn_in, 2 * thin, n_draws, carried=carried)
        self.coarse = Run(
            bound, keys, start, burn_in, thin, n_draws, carried=carried, finer=self.fine
        )
        self.run_to(n_draws)

    def run_to(self, n_draws: int) -> None:
        for run in (self.coarse, self.fine):
            run.run_to(n_draws)

    @property
    def draws(self) -> int:
        """Draws per chain."""
        return self.coarse.completed

    @property
    def failed(self) -> bool:
        outcomes = (*self.coarse.outcomes(), *self.fine.outcomes())
        return any(outcome is not Outcome.OK for outcome in outcomes)

    @property
    def n_row_evals(self) -> int:
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


def _mean_with_error(values: HostDraws, batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and its standard error by batch means."""
    chains, draws, d = values.shape
    length = draws // batches
    means = values[:, : length * batches].reshape(chains * batches, length, d).mean(axis=1)
    return means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(len(means))


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
    if isinstance(bound.kernel, SurrogateKernel):
        return checked_after_run(account, bound.kernel, run)
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
        n_draws=plan.draws,
        thin=run.thin,
        seed=seed,
        carried=jax.tree.map(lambda leaf: leaf[chosen], run.state.chains.carried),
    )
    if pairs.failed:
        doubt = "a chain failed while the bias was measured. Make the step size smaller."
        return account.doubting(doubt), pairs.n_row_evals
    unseen = method.unseen_by_pairs
    missing = None
    if unseen is not None:
        missing = (
            f"{unseen} need not vanish with the step size, so pairs of chains may not show it. "
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
    burn_in: int  # Steps of the coarse chains
    draws: int
    batches: int  # Batches per chain, each at least two autocorrelation times long

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
        # Draws of one chain per effective draw of the slowest parameter.
        time = max(1.0, n_chains * n_draws / float(found.ess.min()))
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
