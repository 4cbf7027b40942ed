"""Turn the user's settings into a fully specified method.

Step sizes that the user does not set come from the dynamics (`suggest`).
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import time
from typing import Any

import numpy as np

from ..anchor.anchor import Anchor, laplace
from ..core.errors import InvalidInput, check_int, check_number
from ..dynamics.base import Curvature
from ..methods.automatic import Automatic
from ..methods.base import AbstractMethod
from ..methods.named import METHODS
from ..models.posterior import AbstractPosterior

_MAX_THIN = 100
_DEFAULT_DRAWS = 2000
_DRAWS_PER_CYCLE = 10


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


@dataclasses.dataclass(frozen=True)
class Plan:
    """The method to run and how its settings were chosen."""

    method: AbstractMethod
    step_size: float | None
    """None if pilot runs choose it."""
    rule: str | None
    """How the step size was chosen. None if the user gave it."""
    size: int | None
    """Rows per step. None for methods that use all rows or choose the size themselves."""
    thin: int | None
    draws: int | None
    anchor: Anchor | None
    """Used to choose the settings above. None if the user gave all of them."""
    seconds: float
    """Time spent on computing the anchor."""


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
        return Plan(Automatic(), None, None, None, settings.thin, settings.draws, None, 0.0)
    named, size = METHODS[settings.method], _checked_size(settings, posterior.n_rows)
    parameters = set(inspect.signature(named.make).parameters)
    if settings.step_size is not None:
        check_number("--step-size", settings.step_size, 0, low_open=True)

    start = time.perf_counter()
    anchor, step_size, thin, rule = None, settings.step_size, settings.thin, None
    arguments: dict[str, Any] = {} if size is None else {"size": size}
    if step_size is None or thin is None or parameters & {"friction", "length"}:
        anchor = laplace(posterior)
        example = named.make(1.0, **named.example)
        curvature = Curvature.of(np.asarray(anchor.hessian, np.float64), posterior.n_rows, size)
        suggestion = example.suggest(curvature)
        assert suggestion is not None, "every named method suggests settings"
        arguments |= {
            name: value for name, value in suggestion.others.items() if name in parameters
        }
        if step_size is None:
            step_size, rule = suggestion.step_size, suggestion.rule
        thin = min(_MAX_THIN, math.ceil(suggestion.steps_between)) if thin is None else thin
    arguments |= _other_settings(parameters, posterior.n_rows, size, thin)
    seconds = time.perf_counter() - start
    draws = _DEFAULT_DRAWS if settings.draws is None and settings.ess is None else settings.draws
    return Plan(
        named.make(step_size, **arguments), step_size, rule, size, thin, draws, anchor, seconds
    )


def _other_settings(
    parameters: set[str], n_rows: int, size: int | None, thin: int
) -> dict[str, Any]:
    """Return the settings in `parameters` that do not depend on the curvature."""
    steps_per_pass = -(-n_rows // (size or n_rows))
    known = {"every": steps_per_pass, "cycle": 4 * _DRAWS_PER_CYCLE * thin}
    return {name: value for name, value in known.items() if name in parameters}


def _checked_size(settings: Settings, n_rows: int) -> int | None:
    """Return the given or the default size. None for a method without a `size` argument."""
    assert settings.method is not None, "without --method there is no size to check"
    named = METHODS[settings.method]
    if "size" in inspect.signature(named.make).parameters:
        if settings.size is None:
            return min(n_rows, max(32, n_rows // 1000))
        return check_int("--size", settings.size, 1, n_rows, high_name="n_rows")
    if settings.size is not None:
        reason = (
            "uses every row in every step"
            if named.axes["size"] == "all rows"
            else "chooses its size from the state"
        )
        rule = f"be left out with --method {settings.method}, which {reason}"
        raise InvalidInput(
            "--size", rule, settings.size, "`tallmc methods` lists the methods with a fixed size."
        )
    return None
