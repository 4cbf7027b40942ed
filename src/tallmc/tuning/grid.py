"""The candidates of tuning: one method with several step sizes and sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..core.errors import InvalidInput, check_number
from ..methods.method import Method

FACTORS = tuple(4.0**power for power in range(-3, 3))


def grid(
    method: Method, factors: Sequence[float] = FACTORS, sizes: Sequence[int] | None = None
) -> list[Method]:
    """Copies of `method` with other step sizes and sizes.

    **Arguments:**

    - `method`: a method whose step size is a number.
    - `factors`: factors that multiply the step size. Defaults to 4⁻³ to 4².
    - `sizes`: subsample sizes to combine with every step size. None keeps the size of `method`.

    **Returns:** one method per combination.

    **Raises:** `InvalidInput` if `method` has a schedule, or if a factor is not positive.

    >>> import tallmc
    >>> methods = grid(tallmc.sgld(step_size=0.25, size=10), factors=[1.0, 4.0], sizes=[10, 20])
    >>> [(method.step_size, method.size) for method in methods]
    [(0.25, 10), (1.0, 10), (0.25, 20), (1.0, 20)]
    """
    if not isinstance(method, Method):
        raise InvalidInput("method", "be a Method", method, "See tallmc.Method.")
    step_size = method.step_size
    if not isinstance(step_size, int | float):
        raise InvalidInput(
            "method",
            "have a number for its step size",
            step_size,
            "To tune a schedule, pass a list of methods to tune.",
        )
    steps = [step_size * check_number("factors", factor, 0, low_open=True) for factor in factors]
    all_sizes = [method.size] if sizes is None else sizes
    return [
        dataclasses.replace(method, step_size=step, size=size)
        for size in all_sizes
        for step in steps
    ]
