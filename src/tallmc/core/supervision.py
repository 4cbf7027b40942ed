"""Announce the stages of the preparation of a run, and stop it at a signal or a time limit.

`sample` opens a `supervised` block around the preparation. The functions that do the work call
`stage` where a stage begins, and `checkpoint` between two pieces of work. Outside a `supervised`
block these calls do nothing, so that `laplace` and others work alone. The block is found through a
context variable: most functions between `sample` and a pass over the rows know nothing of it.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator

from .errors import PreparationError
from .interrupts import ReceivedSignal, held_back

_SHARE_FOR_REFINEMENT = 0.5
_BETWEEN_REPORTS = 0.5  # seconds

Announce = Callable[[str, float], None]
"""Receives the name of a stage, again and again while it lasts, and the seconds so far."""

_active: contextvars.ContextVar[Supervision | None] = contextvars.ContextVar(
    "supervision", default=None
)


class TimeIsUp(PreparationError):
    """The time limit of a run passed in its preparation."""


class Clock:
    """Counts the seconds of a run, from its preparation on.

    **Arguments:**

    - `before`: seconds that the run took in earlier processes.
    """

    def __init__(self, before: float = 0.0):
        self._began = time.perf_counter() - before

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began


class Supervision:
    """What work must obey, and to whom it reports."""

    def __init__(
        self,
        received: ReceivedSignal,
        clock: Clock,
        max_seconds: float | None,
        announce: Announce | None,
    ):
        self.received, self.clock = received, clock
        self.max_seconds, self.announce = max_seconds, announce
        self.stage = "preparing"
        self._next_report = 0.0

    def begin(self, stage: str) -> None:
        """Begin a stage, unless the work must stop."""
        self._stop_if_due()
        self.stage, self._next_report = stage, 0.0
        self.check()

    def check(self) -> None:
        """Raise if the work must stop; otherwise report."""
        self._stop_if_due()
        seconds = self.clock.seconds
        if self.announce is not None and seconds >= self._next_report:
            self._next_report = seconds + _BETWEEN_REPORTS
            self.announce(self.stage, seconds)

    def _stop_if_due(self) -> None:
        self.received.deliver()
        if self.max_seconds is not None and self.clock.seconds >= self.max_seconds:
            raise TimeIsUp(
                f"the limit of {self.max_seconds:g} seconds passed while {self.stage}, before the "
                "first draw. Raise max_seconds, or remove it."
            )

    @property
    def is_short_of_time(self) -> bool:
        return (
            self.max_seconds is not None
            and self.clock.seconds >= _SHARE_FOR_REFINEMENT * self.max_seconds
        )


@contextlib.contextmanager
def supervised(
    clock: Clock | None = None,
    max_seconds: float | None = None,
    announce: Announce | None = None,
    *,
    signals_raise: bool = False,
) -> Iterator[Supervision]:
    """Supervise the work in the block; a block inside another obeys the signals of the outer one.

    Signals wait for the next `checkpoint`. With `signals_raise` they raise at once, which is safe
    only if the process then ends without the teardown of the interpreter (`os._exit`).

    **Arguments:**

    - `clock`: the clock of the run; that of the outer block, or a new one, by default.
    - `max_seconds`: the limit on the clock. The first `checkpoint` after it raises `TimeIsUp`.
    - `announce`: hears of the stages.
    """
    outer = _active.get()
    with contextlib.ExitStack() as stack:
        if outer is None:
            received = stack.enter_context(held_back(raises=signals_raise))
        else:
            received = outer.received
        supervision = Supervision(received, clock or current_clock(), max_seconds, announce)
        token = _active.set(supervision)
        try:
            yield supervision
            received.deliver()
        finally:
            _active.reset(token)


def stage(name: str) -> None:
    """Begin a stage of the preparation, named by what is done, such as "finding the mode"."""
    if (supervision := _active.get()) is not None:
        supervision.begin(name)


def checkpoint() -> None:
    """Raise if the work must stop. Call it between two pieces of work."""
    if (supervision := _active.get()) is not None:
        supervision.check()


def is_short_of_time() -> bool:
    """Whether half of the time limit is gone, so that settings should be refined no further."""
    return (supervision := _active.get()) is not None and supervision.is_short_of_time


def current_clock() -> Clock:
    """The clock of the block that is active, or a new one."""
    return Clock() if (supervision := _active.get()) is None else supervision.clock
