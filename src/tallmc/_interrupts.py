"""Signals while the compiled loop runs: heard between two calls of it, so that what is kept always belongs to one state."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Heard:
    """The signal that asked for an end, if one did."""

    number: int | None = None


@contextlib.contextmanager
def held_back() -> Iterator[Heard]:
    """Hold back Ctrl-C, and SIGTERM where the program handles it; a second signal goes to the program's own handler."""
    heard = Heard()
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        if heard.number is not None and callable(handler := before[number]):
            handler(number, frame)
        heard.number = number

    if threading.current_thread() is threading.main_thread():
        wanted = (signal.SIGINT, signal.SIGTERM)
        before = {number: handler for number in wanted if callable(handler := signal.getsignal(number))}
        for number in before:
            signal.signal(number, note)
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
