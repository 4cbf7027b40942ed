"""From the first step, or from where an earlier process got to, to the draws."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np

from ._doubts import coarse_potential, doubts, failures
from ._draws import Draws, Timing
from ._errors import SamplingWarning
from ._goal import run_until
from ._kept import AbstractKept, Snapshot
from ._posterior import AbstractPosterior
from ._started import Started
from .automatic.anchored import account_after
from .progress import Progress, showing
from .store.writer import StorageFailed, Stored


def carry_out(
    posterior: AbstractPosterior,
    started: Started,
    kept: AbstractKept,
    progress: bool | None,
    callback: Callable[[Progress], None] | None,
    snapshot: Snapshot | None = None,
) -> Draws:
    """Run to the goal, warn of what is doubtful, and bring everything to safety where it is stored."""
    began = time.perf_counter()
    run = started.run(kept)
    if snapshot is not None:
        run.restore(snapshot)
    preparation = started.seconds + time.perf_counter() - began
    began = time.perf_counter()
    run.compile()
    compilation = time.perf_counter() - began
    failed: StorageFailed | None = None
    try:
        with showing(progress) as show:
            stopped_by = run_until(run, started.goal, [hear for hear in (show, callback) if hear is not None])
        kept.settle(run.snapshot, last=True)
    except StorageFailed as error:
        failed, stopped_by = error, f"the store ({error.strerror})"
    whole = kept.whole()
    draws = Draws(
        positions=whole.positions,
        sample_stats=whole.stats,
        outcomes=run.outcomes(),
        n_row_evals_sampling=run.rows_touched(),
        n_row_evals_preparation=started.n_row_evals,
        timing=Timing(preparation, compilation, run.seconds),
        layout=posterior.layout,
        settings=started.settings(posterior),
        account=account_after(run, started.account, stopped_by),
        stopped_by=stopped_by,
    )
    found = failures(draws, run.failed_at()) + doubts(draws, None if started.anchor is None else started.anchor.covariance)
    if started.method.has_accept_step:
        found += coarse_potential(posterior, run.last_positions()[0])
    if failed is not None:
        found.append(f"{failed.strerror}: the run stopped there. Its draws so far are returned; resume it once there is room.")
    elif isinstance(kept, Stored):
        found += _conclude(kept, draws, found)
    for message in found:
        warnings.warn(message, SamplingWarning, stacklevel=3)
    return draws


def _conclude(kept: Stored, draws: Draws, found: list[str]) -> list[str]:
    """The last word in the store; returns what is to be said where it could not be written."""
    account = draws.account
    inflation = None if account is None else account.inflation
    progress = {
        "seconds": vars(draws.timing),
        "stopped_by": draws.stopped_by,
        "warnings": found,
        "doubts": [] if account is None else list(account.doubts),
        "inflation": inflation.tolist() if inflation is not None and np.isfinite(inflation).all() else None,
    }
    try:
        kept.conclude(progress, draws.ok.tolist(), finished=draws.stopped_by is None)
    except OSError as error:
        return [f"the store could not be completed: {error.strerror}. Its blocks are intact; resume it once there is room."]
    return []
