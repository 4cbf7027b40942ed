"""Errors and warnings that name the parameter, the rule it broke, the value and the cure."""

from __future__ import annotations

import math
import numbers
from typing import Any


class InvalidInput(ValueError):
    """A bad argument.

    **Arguments:**

    - `parameter`: the name of the argument.
    - `rule`: what the argument must do, such as "be positive".
    - `value`: the value that breaks the rule.
    - `cure`: how to fix it, as a sentence.

    >>> raise InvalidInput("batch size", "be an int in [1, n_rows = 58000]", 0)
    Traceback (most recent call last):
    tallmc.core.errors.InvalidInput: batch size must be an int in [1, n_rows = 58000]; got 0
    """

    def __init__(self, parameter: str, rule: str, value: Any, cure: str = ""):
        message = f"{parameter} must {rule}; got {_format_value(value)}"
        super().__init__(f"{message}. {cure}" if cure else message)
        self.parameter, self.rule, self.value, self.cure = parameter, rule, value, cure

    def renamed(self, parameter: str) -> InvalidInput:
        """The same error about an argument that the user knows by another name."""
        return InvalidInput(parameter, self.rule, self.value, self.cure)


class PreparationError(RuntimeError):
    """The preparation of a run failed.

    No mode was found, the Hessian at the mode is not positive definite, or a pilot run failed.

    >>> issubclass(PreparationError, RuntimeError)
    True
    """


class SamplingWarning(UserWarning):
    """The draws need attention, for example because a chain failed or the run was interrupted.

    >>> issubclass(SamplingWarning, UserWarning)
    True
    """


def _format_value(value: Any) -> str:
    text = value if isinstance(value, str) and " " in value else repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


def check_int(
    parameter: str,
    value: Any,
    low: int,
    high: int | None = None,
    *,
    high_name: str = "",
    cure: str = "",
) -> int:
    """`value` as an int; raises unless it is an int in [low, high]."""
    is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if is_int and value >= low and (high is None or value <= high):
        return int(value)
    upper = "" if high is None else f"{high_name} = {high}" if high_name else str(high)
    rule = f"be an int of at least {low}" if high is None else f"be an int in [{low}, {upper}]"
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
    """`value` as a float; raises unless it is finite and between `low` and `high`."""
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
