"""Stop long work before the first draw at a signal.

`sample` opens a `supervised` block around the preparation of a run. The functions that do the work
call `checkpoint` between two pieces of it. Outside a `supervised` block the call does nothing, so
that `laplace` and others work alone.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from .interrupts import ReceivedSignal, held_back

_active: contextvars.ContextVar[Supervision | None] = contextvars.ContextVar(
    "supervision", default=None
)


class Supervision:
    """The signal that work must obey."""

    def __init__(self, received: ReceivedSignal):
        self.received = received

    def check(self) -> None:
        """Raise if the work must stop."""
        self.received.deliver()


@contextlib.contextmanager
def supervised(*, signals_raise: bool = False) -> Iterator[Supervision]:
    """Supervise the work in the block; a block inside another obeys the signals of the outer one.

    Signals wait for the next `checkpoint`. With `signals_raise` they raise at once, which is safe
    only if the process then ends without the teardown of the interpreter (`os._exit`).
    """
    outer = _active.get()
    with contextlib.ExitStack() as stack:
        if outer is None:
            received = stack.enter_context(held_back(raises=signals_raise))
        else:
            received = outer.received
        supervision = Supervision(received)
        token = _active.set(supervision)
        try:
            yield supervision
            supervision.check()
        finally:
            _active.reset(token)


def checkpoint() -> None:
    """Raise if the work must stop. Call it between two pieces of work."""
    if (supervision := _active.get()) is not None:
        supervision.check()
