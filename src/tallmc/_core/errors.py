"""Errors and warnings that name the parameter, the rule it broke, the value and the cure."""

from __future__ import annotations

import contextlib
import enum
import math
import numbers
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_PACKAGE = __name__.partition(".")[0]


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this package."""
    called_from = 2
    for level, (frame, _) in enumerate(traceback.walk_stack(sys._getframe(1)), start=3):
        if frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
            called_from = level
    warnings.warn(message, category, stacklevel=called_from)


# Numbers in sentences.


def counted(count: int, noun: str) -> str:
    """A count with its noun, which takes an s unless there is one."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class InvalidInput(ValueError):
    """A bad argument.

    **Arguments:**

    - `parameter`: the name of the argument.
    - `rule`: what the argument must do, such as "be positive".
    - `value`: the value that breaks the rule.
    - `cure`: how to fix it, as a sentence.
    """

    def __init__(self, parameter: str, rule: str, value: Any, cure: str = ""):
        message = f"{parameter} must {rule}; got {_format_value(value)}".removesuffix(".")
        super().__init__(f"{message}. {cure}" if cure else message)
        self.parameter, self.rule, self.value, self.cure = parameter, rule, value, cure

    def renamed(self, parameter: str) -> InvalidInput:
        """The same error about an argument that the user knows by another name."""
        return InvalidInput(parameter, self.rule, self.value, self.cure)


# Options have two names, "--missing drop (missing='drop')": that of the command, that of Python.

_BOTH = re.compile(r"(--[a-z-]+)( [\w.]+| '[^']+')? \((\w+)((?:=[^()]*)?)\)")


def in_shell(text: str) -> str:
    """A message for users of the command: "--missing drop"."""
    return _BOTH.sub(lambda found: found[1] + (found[2] or ""), text)


def python_words(text: str, table: str = "data") -> str:
    """A message for users of Python: "missing='drop'"; `table` is an argument's name."""

    def argument(found: re.Match[str]) -> str:
        value = (found[2] or "").strip(" '")
        return f"{found[3]}={value!r}" if value else found[3] + found[4]

    return re.sub(r"\bTABLE\b", table, _BOTH.sub(argument, text).replace("--response", "formula"))


@contextlib.contextmanager
def speaking_python(table: str) -> Iterator[None]:
    """Errors in the block name the arguments of a Python function, which calls its table so."""
    try:
        yield
    except InvalidInput as error:
        error.args = (python_words(str(error), table),)
        error.parameter = python_words(error.parameter, table)
        raise


class PreparationError(RuntimeError):
    """The preparation of a run failed.

    No mode was found, the Hessian at the mode is not positive definite, or a pilot run failed.
    """


class SamplingWarning(UserWarning):
    """The draws need attention, for example because a chain failed or the run was interrupted."""


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


# How a chain ended. Failure is a value, not an exception: the other chains continue.

DIVERGENCE_LIMIT = 1e10


class Outcome(enum.IntEnum):
    """How a chain ended."""

    OK = 0
    NON_FINITE = 1
    DIVERGED = 2
    TOO_NOISY = 3

    @property
    def message(self) -> str:
        """What happened to the chain, and the cure."""
        return _MESSAGES[self]


_CURE = (
    "Make the step size smaller or the subsample larger. "
    "With a control variate, start near the anchor."
)
_MESSAGES = {
    Outcome.OK: "completed",
    Outcome.NON_FINITE: f"reached a NaN or infinite position. {_CURE} "
    "Standardise columns of very different scale.",
    Outcome.DIVERGED: f"ran away: a coordinate exceeded {DIVERGENCE_LIMIT:g}. {_CURE}",
    Outcome.TOO_NOISY: "had more gradient noise than its step can correct. "
    "Make the step size smaller or the subsample larger.",
}


def outcome_of(position: Float[Array, " d"]) -> Int[Array, ""]:
    largest = jnp.max(jnp.abs(position))
    failed = jnp.where(jnp.isfinite(largest), Outcome.DIVERGED, Outcome.NON_FINITE)
    return jnp.where(largest < DIVERGENCE_LIMIT, Outcome.OK, failed).astype(jnp.int32)
