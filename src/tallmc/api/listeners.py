"""Those who hear of the progress of a run: the display and the user's callback."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType

from ..engine.goal import Goal
from ..engine.progress import Progress
from ..results.display import showing


class Listeners:
    """The display, open until `close_display` or the end of the block, and the callback."""

    def __init__(
        self,
        progress: bool | None,
        callback: Callable[[Progress], None] | None,
        goal: Goal,
        n_rows: int,
    ):
        self._progress, self._callback, self._goal, self._n_rows = progress, callback, goal, n_rows
        self._display = contextlib.ExitStack()
        self.all: list[Callable[[Progress], None]] = []
        self._last: Progress | None = None
        self._announced = False

    def __enter__(self) -> Listeners:
        show = self._display.enter_context(showing(self._progress))
        self.all = [listener for listener in (show, self._callback) if listener is not None]
        if self.all:
            self.all.append(self._remember)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close_display()

    def announce(self, stage: str, seconds: float) -> None:
        """Report a stage before or after the steps of the run."""
        self._announced = True
        now = Progress.preparing(stage, seconds, self._n_rows, self._goal.draws, self._goal.ess)
        for listener in self.all:
            if listener != self._remember:
                listener(now)

    def repeat_last(self) -> None:
        """Report the last state of the run again, after a stage that followed it."""
        if self._last is not None and self._announced:
            for listener in self.all:
                listener(self._last)

    def _remember(self, progress: Progress) -> None:
        self._last, self._announced = progress, False

    def close_display(self) -> None:
        self._display.close()
