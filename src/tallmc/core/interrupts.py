"""Defer signals to moments at which a run can stop.

A signal that arrives in the compiled loop must wait until the kept draws match the state. A signal
that arrives while XLA compiles must wait until XLA is done: XLA compiles in a thread of its own,
and an interpreter that exits before this thread has ended crashes.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class ReceivedSignal:
    """The signal that asked the work to end, or None."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        """The program's own handlers of the deferred signals."""

    def deliver(self) -> None:
        """Pass the signal, if there is one, to the program's handler, which usually raises.

        **Raises:** `KeyboardInterrupt` if the handler returns.
        """
        if self.number is not None:
            if (handler := self.handlers.get(self.number)) is not None:
                handler(self.number, None)
            raise KeyboardInterrupt


@contextlib.contextmanager
def held_back(*, raises: bool = False) -> Iterator[ReceivedSignal]:
    """Defer Ctrl-C, and SIGTERM if the program handles it.

    A second signal goes to the program's own handler. With `raises`, the first signal also goes
    there. It is remembered nevertheless, because Python discards an exception that is raised while
    it collects garbage.
    """
    received = ReceivedSignal()

    def receive(number: int, frame: FrameType | None) -> None:
        is_first, received.number = received.number is None, number
        if raises or not is_first:
            received.handlers[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        deferred = (signal.SIGINT, signal.SIGTERM)
        received.handlers = {
            number: handler for number in deferred if callable(handler := signal.getsignal(number))
        }
        for number in received.handlers:
            signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in received.handlers.items():
            signal.signal(number, handler)
