"""Make a plan of the user's settings and run it.

Settings that the user does not give are suggested (`methods/suggestions.py`). Costs include those
of planning.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any
from warnings import WarningMessage

from .._api.sample import Listeners, read_by_executor, sample
from .._core.errors import InvalidInput, PreparationError
from .._core.supervision import supervised
from .._engine.run import Goal
from .._store import Folder
from ..methods.abstract import AbstractMethod
from ..methods.automatic import Automatic
from ..methods.registry import method_named
from ..methods.suggestions import Suggested, suggest
from ..models.posterior import AbstractPosterior
from ..results.draws import Draws
from .signals import Terminated

_DEFAULT_DRAWS = 2000
_OPTIONS = {
    name: f"--{name.replace('_', '-')}" for name in ("batch_size", "step_size", "thin", "within")
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings given by the user. None means: choose a value."""

    method: str | None = None
    step_size: float | None = None
    batch_size: int | None = None
    chains: int | None = None
    n_draws: int | None = None
    ess: float | None = None
    burn_in: int | None = None
    thin: int | None = None
    seed: int = 0
    exact: bool = False
    within: str | None = None

    def __post_init__(self) -> None:
        self.domain()
        if self.method is None:
            return
        try:
            method_named(self.method)
        except InvalidInput as error:
            raise error.renamed("--method") from None

    def domain(self) -> tuple[float, float] | None:
        """The box (low, high) of all parameters."""
        if self.within is None:
            return None
        try:
            low, high = map(float, self.within.split(","))
        except ValueError:
            low = high = math.nan
        if not low < high:
            rule, cure = "be two numbers LOW,HIGH in this order", "For example 0,inf."
            raise InvalidInput("--within", rule, self.within, cure)
        return low, high


@dataclasses.dataclass(frozen=True)
class Plan:
    """The method to run and how its settings were chosen."""

    method: AbstractMethod
    suggested: Suggested | None  # settings of a named method; None if pilot runs choose them
    n_draws: int | None
    seconds: float  # spent on choosing the settings


@dataclasses.dataclass(frozen=True)
class Finished:
    """The draws of a run, and the warnings of the library, which are shown after the results."""

    draws: Draws
    warnings: list[str]
    store: Path | None

    @classmethod
    def of(
        cls,
        draws: Draws,
        planning: dict[str, Any],
        caught: list[WarningMessage],
        store: Path | None,
    ) -> Finished:
        """The draws with the cost of planning; a run that ended in the burn-in has no result."""
        if not draws.positions.shape[1]:
            if draws.stopped_by in ("Ctrl-C", "SIGTERM"):
                raise Terminated if draws.stopped_by == "SIGTERM" else KeyboardInterrupt
            cause = f"{draws.stopped_by} ended the run in the burn-in"
            raise PreparationError(f"{cause}. Raise the limit.")
        seconds = draws.timing.preparation + planning["seconds"]
        draws = dataclasses.replace(
            draws,
            timing=dataclasses.replace(draws.timing, preparation=seconds),
            n_row_evals_preparation=draws.n_row_evals_preparation + planning["rows"],
        )
        return cls(draws, [str(warning.message) for warning in caught], store)


def make_plan(posterior: AbstractPosterior, settings: Settings) -> Plan:
    if settings.method is None:
        for name in ("step_size", "batch_size", "within"):
            if (given := getattr(settings, name)) is not None:
                cure = "Without --method, pilot runs choose it."
                raise InvalidInput(_OPTIONS[name], "come with --method", given, cure)
        return Plan(Automatic(exact=settings.exact), None, settings.n_draws, 0.0)
    began = time.perf_counter()
    try:
        found = suggest(
            posterior,
            settings.method,
            batch_size=settings.batch_size,
            step_size=settings.step_size,
            thin=settings.thin,
            seed=settings.seed,
            settings=None if settings.within is None else {"within": settings.domain()},
        )
    except InvalidInput as error:
        raise error.renamed(_OPTIONS.get(error.parameter, error.parameter)) from None
    if settings.exact and not found.method.exact:
        rule = "be left out, or come with an exact method"
        raise InvalidInput("--exact", rule, settings.method, "`tallmc methods` lists them.")
    is_open = settings.n_draws is None and settings.ess is None
    n_draws = _DEFAULT_DRAWS if is_open else settings.n_draws
    return Plan(found.method, found, n_draws, time.perf_counter() - began)


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
    with warnings.catch_warnings(record=True, action="always") as caught:
        goal = Goal.of(settings.n_draws, settings.ess, max_seconds, None)
        with (
            Listeners(progress, None, goal, posterior.n_rows) as listeners,
            supervised(None, max_seconds, listeners.announce),
        ):
            plan = make_plan(posterior, settings)
        announce(plan)
        suggested, anchor, rows = plan.suggested, None, 0
        if suggested is not None:
            rows = suggested.n_row_evals
            if plan.method.needs > 0:
                anchor = suggested.anchor
                rows -= anchor.n_row_evals  # `sample` counts them
        planning = {"seconds": plan.seconds, "rows": rows}
        if store is not None:
            store = dataclasses.replace(store, about={**store.about, "planning": planning})
        draws = sample(
            posterior,
            plan.method,
            chains=settings.chains,
            n_draws=plan.n_draws,
            ess=settings.ess,
            max_seconds=max_seconds,
            burn_in=settings.burn_in,
            thin=settings.thin if suggested is None else suggested.thin,
            seed=settings.seed,
            anchor=anchor,
            measure_bias=True,
            store=store,
            progress=progress,
        )
    return Finished.of(draws, planning, caught, None if store is None else Path(store.path))
