"""Defer signals while the compiled loop runs.

Signals are handled between two calls of the loop, so the kept draws always match the state.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class ReceivedSignal:
    """The signal that asked the run to end, or None."""

    number: int | None = None


@contextlib.contextmanager
def held_back() -> Iterator[ReceivedSignal]:
    """Defer Ctrl-C, and SIGTERM if the program handles it.

    A second signal goes to the program's own handler.
    """
    received = ReceivedSignal()
    handlers: dict[int, Any] = {}

    def receive(number: int, frame: FrameType | None) -> None:
        if received.number is not None and callable(handler := handlers[number]):
            handler(number, frame)
        received.number = number

    if threading.current_thread() is threading.main_thread():
        deferred = (signal.SIGINT, signal.SIGTERM)
        handlers = {
            number: handler for number in deferred if callable(handler := signal.getsignal(number))
        }
        for number in handlers:
            signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
