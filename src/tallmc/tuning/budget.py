"""The cost limit of tuning."""

from __future__ import annotations

import dataclasses

from ..core.errors import InvalidInput, check_int, check_number


@dataclasses.dataclass(frozen=True)
class Budget:
    """Cost limit of `tune`, in rows or in seconds.

    One-off costs before the first step are not counted: the anchor, the weights, compilation.

    **Arguments:**

    - `rows`: rows touched by the chains and by the gradients that score them.
    - `seconds`: time in which the chains run.

    **Raises:** `InvalidInput` unless exactly one of the two is given and it is positive.

    >>> Budget(rows=1_000_000)
    Budget(rows=1000000, seconds=None)
    """

    rows: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.rows is None) == (self.seconds is None):
            raise InvalidInput(
                "budget", "be in rows or in seconds", f"rows={self.rows}, seconds={self.seconds}"
            )
        if self.rows is not None:
            check_int("rows", self.rows, 1)
        else:
            check_number("seconds", self.seconds, 0, low_open=True)
