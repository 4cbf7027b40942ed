"""Execute a plan: run to the goal, warn about problems, store how the run ended."""

from __future__ import annotations

import dataclasses
import time
import warnings

import numpy as np

from ..core.errors import SamplingWarning
from ..core.quantities import AbstractQuantities, StoredQuantities
from ..core.supervision import Clock, TimeIsUp, stage, supervised
from ..engine.goal import run_until
from ..engine.run import Run
from ..engine.sinks import AbstractDrawSink, Conclusion, DrawBlock, Snapshot
from ..methods.account import Account
from ..methods.bias_check import with_measured_bias
from ..methods.run_plan import RunPlan
from ..results.draws import Draws, Timing, with_health
from ..results.findings import coarse_potential, findings
from ..statistics.convergence import Agreement
from ..store.writer import StorageFailed
from .listeners import Listeners


def execute(
    plan: RunPlan,
    sink: AbstractDrawSink,
    listeners: Listeners,
    clock: Clock,
    snapshot: Snapshot | None = None,
) -> Draws:
    """Run a plan from its first step, or from a `snapshot`, and return the draws."""
    with supervised(clock, plan.goal.max_seconds, listeners.announce):
        stage("starting the chains")
        began = time.perf_counter()
        run = plan.run(sink)
        if snapshot is not None:
            run.restore(snapshot)
        preparation = plan.seconds + time.perf_counter() - began
        stage("compiling the step")
        began = time.perf_counter()
        run.compile()
        compilation = time.perf_counter() - began
    storage_error: StorageFailed | None = None
    judge = _Judge()
    try:
        stopped_by = run_until(run, plan.goal, listeners.all, judge, clock)
        sink.settle(run.snapshot, last=True)
    except StorageFailed as error:
        storage_error, stopped_by = error, f"the store ({error.strerror})"
    began = time.perf_counter()
    account, rows_of_check = plan.account.after_run(run, stopped_by, plan.seed)
    if plan.check and stopped_by is None:
        account, rows_of_pairs = _checked(plan, run, account, listeners, clock)
        rows_of_check += rows_of_pairs
    checking = time.perf_counter() - began
    listeners.close_display()
    whole = sink.whole()
    draws = Draws(
        positions=whole.positions,
        sample_stats=whole.stats,
        outcomes=run.outcomes(),
        n_row_evals_sampling=run.rows_touched(),
        n_row_evals_preparation=plan.n_row_evals,
        n_row_evals_check=rows_of_check,
        timing=Timing(preparation, compilation, run.seconds, checking),
        layout=plan.posterior.layout,
        quantities=_quantities(plan.posterior.quantities, whole),
        predictive=plan.posterior.predictive,
        settings=plan.settings(),
        account=account,
        stopped_by=stopped_by,
        group_moments=run.group_moments(),
    )
    covariance = None if plan.anchor is None else plan.anchor.covariance
    found = findings(draws, run.failed_at(), covariance)
    if plan.method.has_accept_step:
        found += coarse_potential(plan.posterior, run.last_positions()[0])
    draws = dataclasses.replace(draws, account=account.doubting(*found))
    draws = with_health(draws, judge.agreement_of(draws))
    messages = [*draws.health.doubts, *draws.health.notes]
    if storage_error is None:
        messages += sink.conclude(_conclusion(draws))
    else:
        cure = "The draws so far are returned; resume the run once there is room."
        messages.append(f"{storage_error.strerror}: the run stopped. {cure}")
    for message in messages:
        warnings.warn(message, SamplingWarning, stacklevel=3)
    return draws


def _quantities(quantities: AbstractQuantities, whole: DrawBlock) -> AbstractQuantities:
    """The quantities of a posterior; those that a store has computed are not computed again."""
    if whole.values is None:
        return quantities
    values = dict(zip(quantities.shapes, whole.values.values(), strict=True))
    return StoredQuantities(values, quantities.dims, quantities.coords, quantities.structure)


class _Judge:
    """Ends a run when R-hat raises no doubt, and keeps the agreement for `health`."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] | None = None
        self.agreed: Agreement | None = None

    def __call__(self, positions: np.ndarray, agreed: Agreement) -> bool:
        self.shape, self.agreed = positions.shape, agreed
        return agreed.reached

    def agreement_of(self, draws: Draws) -> Agreement | None:
        """The agreement of the completed chains, unless it was judged with fewer draws."""
        shape = int(draws.ok.sum()), *draws.positions.shape[1:]
        return self.agreed if shape == self.shape else None


def _checked(
    plan: RunPlan, run: Run, account: Account, listeners: Listeners, clock: Clock
) -> tuple[Account, int]:
    """Measure the bias. Ctrl-C and the time limit end the measurement, but not the run."""
    try:
        with supervised(clock, plan.goal.max_seconds, listeners.announce):
            return with_measured_bias(account, plan.method, plan.bound, run, plan.seed)
    except KeyboardInterrupt:
        return dataclasses.replace(account, unmeasured="the check was interrupted."), 0
    except TimeIsUp:
        reason = "the time limit ended the check. Raise max_seconds."
        return dataclasses.replace(account, unmeasured=reason), 0
    finally:
        listeners.repeat_last()


def _conclusion(draws: Draws) -> Conclusion:
    account = draws.account
    assert account is not None, "every run has an account"
    bias = None if account.bias is None else account.bias._asdict()
    facts = {
        "seconds": vars(draws.timing),
        "stopped_by": draws.stopped_by,
        "n_row_evals_check": draws.n_row_evals_check,
        "doubts": list(account.doubts),
        "inflation": _as_list(account.inflation),
        "noise_tail": account.noise_tail,
        "bias": bias and {name: _as_list(values) for name, values in bias.items()},
        "unmeasured": account.unmeasured,
    }
    return Conclusion(draws.ok.tolist(), finished=draws.stopped_by is None, facts=facts)


def _as_list(values: np.ndarray | None) -> list[float] | None:
    """The values for JSON, which has no NaN."""
    return values.tolist() if values is not None and np.isfinite(values).all() else None
