"""Execute a plan: run to the goal, warn about problems, store how the run ended."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np

from ..core.errors import SamplingWarning
from ..engine.goal import run_until
from ..engine.progress import Progress
from ..engine.sinks import AbstractDrawSink, Conclusion, Snapshot
from ..methods.run_plan import RunPlan
from ..results.display import showing
from ..results.draws import Draws, Timing
from ..results.run_warnings import coarse_potential, doubts, failures
from ..store.writer import StorageFailed


def execute(
    plan: RunPlan,
    sink: AbstractDrawSink,
    progress: bool | None,
    callback: Callable[[Progress], None] | None,
    snapshot: Snapshot | None = None,
) -> Draws:
    """Run a plan from its first step, or from a `snapshot`, and return the draws."""
    began = time.perf_counter()
    run = plan.run(sink)
    if snapshot is not None:
        run.restore(snapshot)
    preparation = plan.seconds + time.perf_counter() - began
    began = time.perf_counter()
    run.compile()
    compilation = time.perf_counter() - began
    storage_error: StorageFailed | None = None
    try:
        with showing(progress) as show:
            listeners = [listener for listener in (show, callback) if listener is not None]
            stopped_by = run_until(run, plan.goal, listeners)
        sink.settle(run.snapshot, last=True)
    except StorageFailed as error:
        storage_error, stopped_by = error, f"the store ({error.strerror})"
    whole = sink.whole()
    draws = Draws(
        positions=whole.positions,
        sample_stats=whole.stats,
        outcomes=run.outcomes(),
        n_row_evals_sampling=run.rows_touched(),
        n_row_evals_preparation=plan.n_row_evals,
        timing=Timing(preparation, compilation, run.seconds),
        layout=plan.posterior.layout,
        settings=plan.settings(),
        account=plan.method.after_run(run, plan.account, stopped_by),
        stopped_by=stopped_by,
    )
    covariance = None if plan.anchor is None else plan.anchor.covariance
    messages = failures(draws, run.failed_at()) + doubts(draws, covariance)
    if plan.method.has_accept_step:
        messages += coarse_potential(plan.posterior, run.last_positions()[0])
    if storage_error is None:
        messages += sink.conclude(_conclusion(draws, messages))
    else:
        cure = "The draws so far are returned; resume the run once there is room."
        messages.append(f"{storage_error.strerror}: the run stopped. {cure}")
    for message in messages:
        warnings.warn(message, SamplingWarning, stacklevel=3)
    return draws


def _conclusion(draws: Draws, messages: list[str]) -> Conclusion:
    account = draws.account
    inflation = None if account is None else account.inflation
    facts = {
        "seconds": vars(draws.timing),
        "stopped_by": draws.stopped_by,
        "warnings": list(messages),
        "doubts": [] if account is None else list(account.doubts),
        "inflation": inflation.tolist()
        if inflation is not None and np.isfinite(inflation).all()
        else None,
    }
    return Conclusion(draws.ok.tolist(), finished=draws.stopped_by is None, facts=facts)
