"""Running a plan, or going on with a stored run: the costs of planning are added to those of sampling."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from .._draws import Draws
from .._posterior import AbstractPosterior
from .._resume import resume
from .._sample import sample
from ..store import Folder
from ..store.reader import open_store
from .plan import Plan, Settings, make_plan


@dataclasses.dataclass(frozen=True)
class Finished:
    draws: Draws
    plan: Plan
    warnings: list[str]
    """What the library warned of, to be shown after the results."""
    store: Path | None = None


def run(
    posterior: AbstractPosterior,
    settings: Settings,
    console: Console,
    announce: Callable[[Plan], None],
    *,
    store: Folder | None = None,
    progress: bool = True,
) -> Finished:
    """Plan, `announce` the plan, sample."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with console.status("finding the mode"):
            plan = make_plan(posterior, settings)
        announce(plan)
        planning = {"seconds": plan.seconds, "rows": _unseen_rows(plan)}
        draws = sample(
            posterior,
            plan.method,
            chains=settings.chains,
            draws=plan.draws,
            ess=settings.ess,
            burn_in=settings.burn_in,
            thin=plan.thin,
            seed=settings.seed,
            anchor=plan.anchor if plan.method.needs > 0 else None,
            store=None if store is None else dataclasses.replace(store, about={**store.about, "planning": planning}),
            progress=progress,
        )
    messages = [str(warning.message) for warning in caught]
    return Finished(_with_planning(draws, planning), plan, messages, None if store is None else Path(store.path))


def go_on(posterior: AbstractPosterior, store: Path, *, draws: int | None, ess: float | None, progress: bool = True) -> Finished:
    """Resume a stored run."""
    planning = open_store(store).setup.content["about"]["planning"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = resume(store, posterior, draws=draws, ess=ess, progress=progress)
    plan = Plan(found.settings["method"], None, None, None, found.settings["thin"], draws, None, planning["seconds"])
    return Finished(_with_planning(found, planning), plan, [str(warning.message) for warning in caught], store)


def _unseen_rows(plan: Plan) -> int:
    """Rows touched for the plan that `sample` does not know of: it had no use for the anchor."""
    return plan.anchor.n_row_evals if plan.anchor is not None and plan.method.needs == 0 else 0


def _with_planning(draws: Draws, planning: dict[str, Any]) -> Draws:
    timing = dataclasses.replace(draws.timing, preparation=draws.timing.preparation + planning["seconds"])
    return dataclasses.replace(draws, timing=timing, n_row_evals_preparation=draws.n_row_evals_preparation + planning["rows"])
