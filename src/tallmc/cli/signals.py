"""End a command on Ctrl-C or SIGTERM with the exit status that shells expect."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn

from .._core.supervision import supervised

AFTER_SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""Exit statuses."""


class Terminated(KeyboardInterrupt):
    """SIGTERM was received; stop as after Ctrl-C."""


@contextlib.contextmanager
def exit_on_signals(message: str = "stopped before the first draw") -> Iterator[None]:
    """Make SIGTERM stop the block like Ctrl-C, with a message.

    In the burn-in and after it, a run handles signals itself: it ends with the draws so far.
    Before that, exit with the status alone.
    """
    previous_handler = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        with supervised(signals_raise=True):  # safe because of `end_at_once`
            yield
    except KeyboardInterrupt as error:
        print(f"tallmc: {message}", file=sys.stderr)
        number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
        raise SystemExit(AFTER_SIGNALS[number]) from None
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def end_at_once(status: int) -> NoReturn:
    """End the process without the teardown of the interpreter.

    The teardown destroys XLA's client, and crashes if XLA is still compiling in a thread.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _raise_terminated(number: int, frame: object) -> NoReturn:
    raise Terminated
