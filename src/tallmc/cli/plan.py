"""Turn the user's settings into a fully specified method.

Settings that the user does not give are suggested (`methods/suggestions.py`).
"""

from __future__ import annotations

import dataclasses
import time

from ..core.errors import InvalidInput
from ..methods.automatic import Automatic
from ..methods.base import AbstractMethod
from ..methods.suggestions import Suggested, suggest
from ..models.posterior import AbstractPosterior

_DEFAULT_DRAWS = 2000
_OPTIONS = {"size": "--size", "step_size": "--step-size", "thin": "--thin"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings given by the user. None means: choose a value."""

    method: str | None = None
    step_size: float | None = None
    size: int | None = None
    chains: int | None = None
    draws: int | None = None
    ess: float | None = None
    burn_in: int | None = None
    thin: int | None = None
    seed: int = 0
    exact: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """The method to run and how its settings were chosen."""

    method: AbstractMethod
    suggested: Suggested | None
    """Settings of a named method. None if pilot runs choose them."""
    draws: int | None
    seconds: float
    """Time spent on choosing the settings."""


def make_plan(posterior: AbstractPosterior, settings: Settings) -> Plan:
    if settings.method is None:
        for option, value in (("--step-size", settings.step_size), ("--size", settings.size)):
            if value is not None:
                raise InvalidInput(
                    option,
                    "come with --method",
                    value,
                    "Without --method, pilot runs choose it.",
                )
        return Plan(Automatic(exact=settings.exact), None, settings.draws, 0.0)
    began = time.perf_counter()
    try:
        found = suggest(
            posterior,
            settings.method,
            size=settings.size,
            step_size=settings.step_size,
            thin=settings.thin,
            seed=settings.seed,
        )
    except InvalidInput as error:
        raise error.renamed(_OPTIONS.get(error.parameter, error.parameter)) from None
    if settings.exact and not found.method.exact:
        rule = "be left out, or come with an exact method"
        raise InvalidInput("--exact", rule, settings.method, "`tallmc methods` lists them.")
    seconds = time.perf_counter() - began
    draws = _DEFAULT_DRAWS if settings.draws is None and settings.ess is None else settings.draws
    return Plan(found.method, found, draws, seconds)
