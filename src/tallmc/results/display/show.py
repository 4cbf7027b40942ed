"""Choose the progress display.

A terminal gets a live table, a notebook gets one line that is redrawn, and any other stream gets
separate lines.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from ...engine.progress import Progress
from .text import bar, line

_FIRST_LINE = 2.0  # seconds
_BETWEEN_LINES = 10.0  # seconds

Show = Callable[[Progress], None]


@contextlib.contextmanager
def showing(wanted: bool | None) -> Iterator[Show | None]:
    """Open the display; yield the function to call with each `Progress`, or None.

    `wanted` is None to display on terminals and in notebooks only, True to display everywhere, and
    False to display nothing. If a display fails, it is closed with a warning and the run continues.
    """
    stack = contextlib.ExitStack()
    show: Show | None = None
    if wanted is not False:
        try:
            show = _open(stack, wanted is True)
        except Exception as error:
            _give_up(error)

    def show_or_close(now: Progress) -> None:
        nonlocal show
        if show is None:
            return
        try:
            show(now)
        except Exception as error:
            show = None
            _give_up(error)

    try:
        yield None if show is None else show_or_close
    finally:
        try:
            stack.close()
        except Exception as error:
            _give_up(error)


def _open(stack: contextlib.ExitStack, also_lines: bool) -> Show | None:
    if _in_notebook():
        return _Notebook()
    if sys.stderr is not None and sys.stderr.isatty():
        try:
            from .live import LiveTable
        except ImportError:  # rich is not installed
            return Lines(sys.stderr)
        return stack.enter_context(LiveTable())
    return Lines(sys.stderr) if also_lines and sys.stderr is not None else None


def _give_up(error: Exception) -> None:
    warnings.warn(
        f"progress is no longer shown ({type(error).__name__}: {error}); the run continues.",
        stacklevel=4,
    )


class Lines:
    """Print lines for logs: the first after two seconds, then at growing intervals.

    A new stage gets a line at once. The last line is the state in which the run ended.
    """

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.first = self.next = time.perf_counter() + _FIRST_LINE
        self.between = _BETWEEN_LINES
        self.stage = ""

    def __call__(self, now: Progress) -> None:
        is_new, self.stage = now.stage != self.stage, now.stage
        if time.perf_counter() < (self.first if is_new else self.next):
            return
        print(f"tallmc: {line(now)}", file=self.stream, flush=True)
        self.next = time.perf_counter() + self.between
        self.between *= 1.2


class _Notebook:
    """Redraw one line in a notebook, as tqdm does."""

    def __init__(self) -> None:
        from IPython.display import display

        self.handle: Any = display({"text/plain": "tallmc: starting"}, raw=True, display_id=True)

    def __call__(self, now: Progress) -> None:
        self.handle.update({"text/plain": bar(now)}, raw=True)


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"
