"""Running a plan: progress while it lasts, the costs of planning added to those of sampling."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .._draws import Draws
from .._posterior import AbstractPosterior
from .._run import Progress as RunProgress
from .._sample import sample
from .plan import Plan, Settings, make_plan


@dataclasses.dataclass(frozen=True)
class Finished:
    draws: Draws
    plan: Plan
    warnings: list[str]
    """What the library warned of, to be shown after the results."""


def run(posterior: AbstractPosterior, settings: Settings, console: Console, announce: Callable[[Plan], None]) -> Finished:
    """Plan, `announce` the plan, sample. The bar is shown on terminals only."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with (
        warnings.catch_warnings(record=True) as caught,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        warnings.simplefilter("always")
        task = bar.add_task("finding the mode", total=None, done="")
        plan = make_plan(posterior, settings)
        announce(plan)
        bar.update(task, description="preparing")

        def show(progress: RunProgress) -> None:
            done = f"{progress.draws:,}{'' if plan.draws is None else f' of {plan.draws:,}'} draws"
            bar.update(task, description="sampling", total=progress.n_steps, completed=progress.step, done=done)

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
            callback=show,
        )
    return Finished(_with_planning(draws, plan), plan, [str(warning.message) for warning in caught])


def _with_planning(draws: Draws, plan: Plan) -> Draws:
    """The rows and seconds that `sample` does not know of: it was given the anchor, or had no use for it."""
    unseen = plan.anchor.n_row_evals if plan.anchor is not None and plan.method.needs == 0 else 0
    timing = dataclasses.replace(draws.timing, preparation=draws.timing.preparation + plan.seconds)
    return dataclasses.replace(draws, timing=timing, n_row_evals_preparation=draws.n_row_evals_preparation + unseen)
