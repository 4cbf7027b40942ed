"""From the user's settings to a method with nothing left open; `defaults.py` says what is chosen and why."""

from __future__ import annotations

import dataclasses
import inspect
import math
import time
from typing import Any

import numpy as np

from .._anchor import Anchor, laplace
from .._errors import InvalidInput, check_int, check_number
from .._method import AbstractMethod
from .._posterior import AbstractPosterior
from ..automatic import Automatic
from ..methods import METHODS
from .defaults import defaults_for, other_settings

_MOST_THIN = 100
_DRAWS = 2000


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the user asked for; None is left to us."""

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
    """What will be run."""

    method: AbstractMethod
    step_size: float | None
    """None when it is chosen by pilot runs."""
    rule: str | None
    """How the step size was chosen; None when it was given."""
    size: int | None
    """Rows a step sees; None for methods that take all or choose by themselves."""
    thin: int | None
    draws: int | None
    anchor: Anchor | None
    """Found to choose the above; None when they were all given."""
    seconds: float
    """Spent on finding it."""


def make_plan(posterior: AbstractPosterior, settings: Settings) -> Plan:
    if settings.method is None:
        for option, value in (("--step-size", settings.step_size), ("--size", settings.size)):
            if value is not None:
                raise InvalidInput(option, "come with --method", value, "Without one it is chosen by pilot runs.")
        return Plan(Automatic(), None, None, None, settings.thin, settings.draws, None, 0.0)
    named, size = METHODS[settings.method], _checked_size(settings, posterior.n_rows)
    parameters = set(inspect.signature(named.make).parameters)
    if settings.step_size is not None:
        check_number("--step-size", settings.step_size, 0, low_open=True)

    began = time.perf_counter()
    anchor, step_size, thin, rule = None, settings.step_size, settings.thin, None
    arguments: dict[str, Any] = {} if size is None else {"size": size}
    if step_size is None or thin is None or parameters & {"friction", "length"}:
        anchor = laplace(posterior)
        example = named.make(1.0, **named.example)
        found = defaults_for(example, np.asarray(anchor.hessian, np.float64), posterior.n_rows, size)
        arguments |= {name: value for name, value in found.others.items() if name in parameters}
        if step_size is None:
            step_size, rule = found.step_size, found.rule
        thin = min(_MOST_THIN, math.ceil(found.steps_between)) if thin is None else thin
    arguments |= other_settings(parameters, posterior.n_rows, size, thin)
    seconds = time.perf_counter() - began
    draws = _DRAWS if settings.draws is None and settings.ess is None else settings.draws
    return Plan(named.make(step_size, **arguments), step_size, rule, size, thin, draws, anchor, seconds)


def _checked_size(settings: Settings, n_rows: int) -> int | None:
    """The size given, or the default one; None for a method without that argument."""
    assert settings.method is not None, "an automatic choice has no size to check"
    named = METHODS[settings.method]
    if "size" in inspect.signature(named.make).parameters:
        if settings.size is None:
            return min(n_rows, max(32, n_rows // 1000))
        return check_int("--size", settings.size, 1, n_rows, high_name="n_rows")
    if settings.size is not None:
        why = "looks at every row in every step" if named.axes["size"] == "all rows" else "chooses its size from the state"
        rule = f"be left out with --method {settings.method}, which {why}"
        raise InvalidInput("--size", rule, settings.size, "Methods of fixed size are listed by `tallmc methods`.")
    return None
