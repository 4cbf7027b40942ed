"""Errors and warnings that name the parameter, the rule it broke, the value and the cure."""

from __future__ import annotations

import math
import numbers
from typing import Any


class InvalidInput(ValueError):
    """A bad argument.

    >>> raise InvalidInput("batch size", "be an int in [1, n_rows = 58000]", 0)
    Traceback (most recent call last):
    tallmc._errors.InvalidInput: batch size must be an int in [1, n_rows = 58000]; got 0
    """

    def __init__(self, parameter: str, rule: str, value: Any, cure: str = ""):
        message = f"{parameter} must {rule}; got {_shown(value)}"
        super().__init__(f"{message}. {cure}" if cure else message)


class PreparationError(RuntimeError):
    """What comes before the first step failed: no mode, no positive definite Hessian there, or a broken pilot run."""


class SamplingWarning(UserWarning):
    """The draws need attention: a chain failed, or the run was interrupted."""


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) and " " in value else repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


def check_int(parameter: str, value: Any, low: int, high: int | None = None, *, high_name: str = "", cure: str = "") -> int:
    """`value` as an int in [low, high]."""
    is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if is_int and value >= low and (high is None or value <= high):
        return int(value)
    top = "" if high is None else f"{high_name} = {high}" if high_name else str(high)
    rule = f"be an int of at least {low}" if high is None else f"be an int in [{low}, {top}]"
    raise InvalidInput(parameter, rule, value, cure)


def check_number(
    parameter: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    low_open: bool = False,
    high_open: bool = False,
    cure: str = "",
) -> float:
    """`value` as a finite float between `low` and `high`."""
    try:
        number = float(value) if not isinstance(value, (str, bool)) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    above = number > low if low_open else number >= low
    below = number < high if high_open else number <= high
    if math.isfinite(number) and above and below:
        return number
    left = "" if low == -math.inf else f"{'>' if low_open else '>='} {low:g}"
    right = "" if high == math.inf else f"{'<' if high_open else '<='} {high:g}"
    rule = " and ".join(filter(None, ["be a finite number", left, right]))
    raise InvalidInput(parameter, rule, value, cure)
