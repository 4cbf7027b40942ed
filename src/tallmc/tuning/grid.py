"""What tuning chooses from: a method with other step sizes and other sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .._errors import InvalidInput, check_number
from .._method import Method

FACTORS = tuple(4.0**power for power in range(-3, 3))


def grid(method: Method, factors: Sequence[float] = FACTORS, sizes: Sequence[int] | None = None) -> list[Method]:
    """`method` with its step size times each of `factors` and, where given, each of `sizes`.

    >>> import tallmc
    >>> [(of.step_size, of.size) for of in grid(tallmc.sgld(step_size=0.25, size=10), factors=[1.0, 4.0], sizes=[10, 20])]
    [(0.25, 10), (1.0, 10), (0.25, 20), (1.0, 20)]
    """
    if not isinstance(method, Method):
        raise InvalidInput("method", "be a Method", method, "See tallmc.Method.")
    step_size = method.step_size
    if not isinstance(step_size, int | float):
        raise InvalidInput("method", "have a number for its step size", step_size, "For schedules give tune a list of methods.")
    steps = [step_size * check_number("factors", factor, 0, low_open=True) for factor in factors]
    all_sizes = [method.size] if sizes is None else sizes
    return [dataclasses.replace(method, step_size=step, size=size) for size in all_sizes for step in steps]
