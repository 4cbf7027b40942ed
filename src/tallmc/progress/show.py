"""Where progress is shown: a live table on a terminal, lines elsewhere, one line that is redrawn in a notebook."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from .facts import Progress
from .text import bar, line

_FIRST_LINE = 2.0
_BETWEEN_LINES = 10.0

Show = Callable[[Progress], None]


@contextlib.contextmanager
def showing(wanted: bool | None) -> Iterator[Show | None]:
    """What to call with each `Progress`, or None. Unless `wanted`, terminals and notebooks only; False for nowhere at all.

    A display that fails is given up with a warning; the run goes on.
    """
    stack = contextlib.ExitStack()
    show: Show | None = None
    if wanted is not False:
        try:
            show = _open(stack, wanted is True)
        except Exception as error:
            _give_up(error)

    def safely(now: Progress) -> None:
        nonlocal show
        if show is None:
            return
        try:
            show(now)
        except Exception as error:
            show = None
            _give_up(error)

    try:
        yield None if show is None else safely
    finally:
        try:
            stack.close()
        except Exception as error:
            _give_up(error)


def _open(stack: contextlib.ExitStack, lines_too: bool) -> Show | None:
    if _in_notebook():
        return _Notebook()
    if sys.stderr is not None and sys.stderr.isatty():
        try:
            from .live import LiveTable
        except ImportError:  # no rich: lines will do
            return Lines(sys.stderr)
        return stack.enter_context(LiveTable())
    return Lines(sys.stderr) if lines_too and sys.stderr is not None else None


def _give_up(error: Exception) -> None:
    warnings.warn(f"progress is no longer shown ({type(error).__name__}: {error}); the run goes on.", stacklevel=4)


class Lines:
    """A line now and then, for logs: after a moment, then at growing intervals."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.next = time.perf_counter() + _FIRST_LINE
        self.between = _BETWEEN_LINES

    def __call__(self, now: Progress) -> None:
        if time.perf_counter() < self.next:
            return
        print(f"tallmc: {line(now)}", file=self.stream, flush=True)
        self.next = time.perf_counter() + self.between
        self.between *= 1.2


class _Notebook:
    """One line that is redrawn, as tqdm does."""

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
