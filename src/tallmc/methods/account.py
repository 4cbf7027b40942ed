"""The account of a run: what was chosen, why, and how large its bias is."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..core.outcome import Outcome
from ..dynamics.leimkuhler_matthews import LeimkuhlerMatthewsDynamics
from ..engine.kernel import Kernel
from ..engine.run import Run
from ..statistics.moments import moments
from ..statistics.pareto import pareto_k
from ..subsample.measured_selection import MeasuredSelection
from ..subsample.replacement import WithReplacement
from .visited_noise import visited_noise


@dataclasses.dataclass(frozen=True)
class ErrorBudget:
    """Largest error allowed in the worst parameter."""

    inflation: float = 0.01
    """Relative inflation of a variance by gradient noise."""
    mean_bias: float = 0.04
    """Bias of a mean by step size and gradient noise, in posterior standard deviations."""
    sd_bias: float = 0.02
    """Relative bias of a standard deviation by step size and gradient noise."""


CHOSEN_BUDGET = ErrorBudget(inflation=0.1, mean_bias=0.1, sd_bias=0.05)
"""The budget of a method that the user chooses."""


class Bias(NamedTuple):
    """Bias per parameter with its standard errors."""

    mean: Float[np.ndarray, " d"]
    """Bias of the mean, in posterior standard deviations."""
    mean_error: Float[np.ndarray, " d"]
    """Standard error of `mean`."""
    sd: Float[np.ndarray, " d"]
    """Relative bias of the standard deviation."""
    sd_error: Float[np.ndarray, " d"]
    """Standard error of `sd`."""

    def excess(self, budget: ErrorBudget, errors: float) -> float:
        """The worst bias, less this many standard errors, relative to the budget."""
        mean = (np.abs(self.mean) - errors * self.mean_error).max() / budget.mean_bias
        sd = (np.abs(self.sd) - errors * self.sd_error).max() / budget.sd_bias
        return float(max(mean, sd))

    def imprecision(self, budget: ErrorBudget) -> float:
        """The largest standard error, relative to the budget."""
        mean, sd = self.mean_error.max() / budget.mean_bias, self.sd_error.max() / budget.sd_bias
        return float(max(mean, sd))


@dataclasses.dataclass(frozen=True)
class Account:
    """What a method did to a posterior: its choices, its reasons and its bias."""

    method: Any
    """Composition that was run."""
    budget: ErrorBudget = CHOSEN_BUDGET
    """Error that the choice allowed for."""
    reasons: tuple[str, ...] = ()
    """What an automatic choice chose, and why."""
    doubts: tuple[str, ...] = ()
    """Reasons not to trust the draws."""
    bias: Bias | None = None
    """Bias measured with pairs of chains; None if there is no bias or it is not known."""
    exact: bool = False
    """Whether the method leaves the posterior invariant; only Monte-Carlo error then remains."""
    inflation: Float[np.ndarray, " d"] | None = None
    """Inflation of the variances by gradient noise, measured during the run or at its draws."""
    noise_tail: float | None = None
    """Pareto's k of the squared gradient noise at the draws; None if it was not measured there."""
    notes: tuple[str, ...] = ()
    """What the user should know about the posterior, such as a direction that the prior decides."""
    unmeasured: str | None = None
    """What keeps the bias from being known, with the cure; None if it is known."""

    def after_run(self, run: Run, stopped_by: str | None, seed: int) -> tuple[Account, int]:
        """Return the account with the noise of the run, and how many rows this touched.

        A run that ended early raises a doubt.
        """
        doubts = self.doubts
        if stopped_by is not None:
            doubts += (f"{stopped_by} ended the run before its goal.",)
        kernel = run.kernel
        broken = kernel.broken_claim(run.state.chains)
        if broken is not None:
            doubts += (broken,)
        account = dataclasses.replace(
            self,
            doubts=doubts,
            exact=self.exact and broken is None,
            unmeasured=self.unmeasured if broken is None else broken,
        )
        if not isinstance(kernel, Kernel) or not run.completed:
            return account, 0
        if isinstance(kernel.selection, MeasuredSelection):
            return dataclasses.replace(account, inflation=_inflation_during(run)), 0
        chosen_here = bool(self.reasons) and isinstance(kernel.dynamics, LeimkuhlerMatthewsDynamics)
        if not (chosen_here and isinstance(kernel.selection, WithReplacement)):
            return account, 0
        positions, ok = run.positions(), np.array(run.outcomes()) == Outcome.OK
        if not ok.all():  # a selection of chains is a copy, also of draws on disk
            positions = positions[ok]
        if not positions.size:
            return account, 0
        noise = visited_noise(kernel, run.rows, positions, seed)
        step = float(np.asarray(kernel.schedule.step_size))  # type: ignore[attr-defined]
        variances = moments(positions).sd ** 2
        return dataclasses.replace(
            account,
            inflation=step / (4 - step) * noise.by_parameter / variances,
            noise_tail=pareto_k(noise.squared) if np.ptp(noise.squared) > 0 else None,
        ), noise.n_row_evals

    def doubting(self, *doubts: str) -> Account:
        """Return the account with further doubts."""
        return dataclasses.replace(self, doubts=(*self.doubts, *doubts))


def _inflation_during(run: Run) -> Float[np.ndarray, " d"]:
    """Variance inflation by the gradient noise v that the steps have measured, h v/(4 − h)."""
    totals = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64).sum(axis=0), run.state.chains.memory.selection
    )
    step = float(run.kernel.schedule(jnp.int32(0)))
    return step / (4 - step) * totals.sum_by_parameter / totals.steps / run.variances()
