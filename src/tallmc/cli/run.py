"""Run a plan or continue a stored run. Costs include those of planning."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from ..api.executors import read_by_executor
from ..api.listeners import Listeners
from ..api.resume import resume
from ..api.sample import sample
from ..core.errors import PreparationError
from ..core.supervision import supervised
from ..engine.goal import Goal
from ..models.posterior import AbstractPosterior
from ..results.draws import Draws
from ..store import Folder
from ..store.reader import open_store
from .plan import Plan, Settings, make_plan
from .signals import Terminated


@dataclasses.dataclass(frozen=True)
class Finished:
    """The draws of a run, with the plan and the warnings."""

    draws: Draws
    plan: Plan
    warnings: list[str]
    """Warnings issued by the library, shown after the results."""
    store: Path | None = None


def run(
    posterior: AbstractPosterior,
    settings: Settings,
    announce: Callable[[Plan], None],
    *,
    store: Folder | None = None,
    progress: bool = True,
    max_seconds: float | None = None,
    executor: Executor | None = None,
) -> Finished:
    """Make a plan, pass it to `announce`, and sample.

    `max_seconds` counts from the beginning of the command. An executor reads a row store.
    """
    posterior = read_by_executor(posterior, executor)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        goal = Goal.of(settings.draws, settings.ess, max_seconds, None)
        with (
            Listeners(progress, None, goal, posterior.n_rows) as listeners,
            supervised(None, max_seconds, listeners.announce),
        ):
            plan = make_plan(posterior, settings)
        announce(plan)
        suggested = plan.suggested
        planning = {"seconds": plan.seconds, "rows": _uncounted_rows(plan)}
        draws = sample(
            posterior,
            plan.method,
            chains=settings.chains,
            draws=plan.draws,
            ess=settings.ess,
            max_seconds=max_seconds,
            burn_in=settings.burn_in,
            thin=settings.thin if suggested is None else suggested.thin,
            seed=settings.seed,
            anchor=suggested.anchor if suggested is not None and plan.method.needs > 0 else None,
            check=True,
            store=None
            if store is None
            else dataclasses.replace(store, about={**store.about, "planning": planning}),
            progress=progress,
        )
    _check_any_draws(draws)
    messages = [str(warning.message) for warning in caught]
    return Finished(
        _with_planning(draws, planning), plan, messages, None if store is None else Path(store.path)
    )


def go_on(
    posterior: AbstractPosterior,
    store: Path,
    *,
    draws: int | None,
    ess: float | None,
    max_seconds: float | None = None,
    progress: bool = True,
    executor: Executor | None = None,
) -> Finished:
    """Resume a stored run."""
    planning = open_store(store).setup.content["about"]["planning"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed = resume(
            store,
            posterior,
            draws=draws,
            ess=ess,
            max_seconds=max_seconds,
            progress=progress,
            executor=executor,
        )
    _check_any_draws(resumed)
    plan = Plan(resumed.settings["method"], None, draws, planning["seconds"])
    return Finished(
        _with_planning(resumed, planning), plan, [str(warning.message) for warning in caught], store
    )


def _check_any_draws(draws: Draws) -> None:
    """Raise what ended the run if it ended in the burn-in: without draws there is no result."""
    if draws.positions.shape[1]:
        return
    if draws.stopped_by in ("Ctrl-C", "SIGTERM"):
        raise Terminated if draws.stopped_by == "SIGTERM" else KeyboardInterrupt
    raise PreparationError(f"{draws.stopped_by} ended the run in the burn-in. Raise the limit.")


def _uncounted_rows(plan: Plan) -> int:
    """Return the rows touched by the suggestion that `sample` does not count."""
    if plan.suggested is None:
        return 0
    counted = plan.suggested.anchor.n_row_evals if plan.method.needs > 0 else 0
    return plan.suggested.n_row_evals - counted


def _with_planning(draws: Draws, planning: dict[str, Any]) -> Draws:
    timing = dataclasses.replace(
        draws.timing, preparation=draws.timing.preparation + planning["seconds"]
    )
    return dataclasses.replace(
        draws,
        timing=timing,
        n_row_evals_preparation=draws.n_row_evals_preparation + planning["rows"],
    )
