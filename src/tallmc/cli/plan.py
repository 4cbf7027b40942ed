"""From the user's settings to a method with nothing left open.

What is not given is read off the curvature H at the mode: a step size ε = 0.2/λ_max(H), a twentieth of where Langevin dynamics
becomes unstable, so that discretisation widens no direction by more than 3 %; and a draw for every 1/(ε λ_min(H)) steps, half the
time in which the slowest direction forgets where it was.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import time
from typing import Any

import numpy as np

from .._anchor import Anchor, laplace
from .._errors import InvalidInput, check_int, check_number
from .._method import Method
from .._posterior import AbstractPosterior
from ..methods import METHODS

_STABILITY = 0.2
_MOST_THIN = 100


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the user asked for; None is left to us."""

    method: str = "sgld_cv_ps"
    step_size: float | None = None
    size: int | None = None
    chains: int = 4
    draws: int = 2000
    burn_in: int | None = None
    thin: int | None = None
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """What will be run."""

    method: Method
    step_size: float
    size: int | None
    """Rows a step sees; None for methods that take all or choose by themselves."""
    thin: int
    anchor: Anchor | None
    """Found to choose the above; None when they were all given."""
    seconds: float
    """Spent on finding it."""


def make_plan(posterior: AbstractPosterior, settings: Settings) -> Plan:
    size = _checked_size(settings, posterior.n_rows)
    step_size, thin = settings.step_size, settings.thin
    if step_size is not None:
        check_number("--step-size", step_size, 0, low_open=True)

    began = time.perf_counter()
    anchor = None
    if step_size is None or thin is None:
        anchor = laplace(posterior)
        curvatures = np.linalg.eigvalsh(np.asarray(anchor.hessian, np.float64))
        step_size = float(_STABILITY / curvatures[-1]) if step_size is None else step_size
        thin = min(_MOST_THIN, math.ceil(1 / (step_size * curvatures[0]))) if thin is None else thin
    seconds = time.perf_counter() - began

    arguments: dict[str, Any] = {"step_size": step_size} | ({} if size is None else {"size": size})
    return Plan(METHODS[settings.method].make(**arguments), step_size, size, thin, anchor, seconds)


def _checked_size(settings: Settings, n_rows: int) -> int | None:
    """The size given, or the default one; None for a method without that argument."""
    named = METHODS[settings.method]
    if "size" in inspect.signature(named.make).parameters:
        if settings.size is None:
            return min(n_rows, max(32, n_rows // 1000))
        return check_int("--size", settings.size, 1, n_rows, high_name="n_rows")
    if settings.size is not None:
        why = "looks at every row in every step" if named.size == "N" else "chooses its size from the state"
        rule = f"be left out with --method {settings.method}, which {why}"
        raise InvalidInput("--size", rule, settings.size, "Methods of fixed size are listed by `tallmc methods`.")
    return None
