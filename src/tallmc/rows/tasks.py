"""Tasks of an executor: lost workers, hung workers, interrupts.

A worker leaves a note when it begins with a task: an empty folder whose name says who it is. Making
a folder is a single call of the system, and in a Dask worker every call may wait for Python's lock.
A task that has begun and does not come back is given to another worker, with a warning that names
the first one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from pathlib import Path
from typing import Any

from ..core.errors import PreparationError
from ..core.supervision import checkpoint

_SECONDS_BETWEEN_LOOKS = 0.25
_MOST_BEGUN, _MOST_ATTEMPTS = 2, 4
"""Attempts of a task that hung, and of all. An executor may give a task to a hung worker again."""
_LOST_ON_DASK = ("KilledWorker", "CommClosedError", "FutureCancelledError")

RunTask = Callable[..., list[Any]]
"""Called in a worker with the arguments of a task and the path of its note."""


class WorkerError(PreparationError):
    """A worker was lost or hung, and its work could not be done elsewhere.

    >>> issubclass(WorkerError, PreparationError)
    True
    """


def results_of_tasks(
    executor: Executor,
    run: RunTask,
    arguments: Sequence[tuple[Any, ...]],
    names: Sequence[str],
    time_limit: float,
    folder: Path | None,
) -> list[list[Any]]:
    """`run(*arguments, note)` for the arguments of every task, in order.

    **Arguments:**

    - `names`: what the user calls each task.
    - `time_limit`: seconds after which a task is given to another worker.
    - `folder`: a folder that this process and the workers share, for their notes.

    **Raises:** `WorkerError` if a worker was lost for good or hung twice.
    """
    with _notes(folder) as notes:
        tasks: list[_Task] = []
        try:
            for of_task, name in zip(arguments, names, strict=True):
                tasks.append(_Task(executor, run, of_task, name, notes))
            _wait_for(tasks, notes, time_limit)
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()


def write_note(path: str) -> None:
    """Note who has begun with a task. Called by workers."""
    with contextlib.suppress(OSError):
        os.mkdir(f"{path} process {os.getpid()} on host {_host()}")


_host = functools.cache(socket.gethostname)


def _read_notes(folder: Path) -> dict[str, str]:
    """Who has begun with each task, by the name of the note."""
    with contextlib.suppress(OSError):
        return dict(name.split(" ", 1) for name in os.listdir(folder))
    return {}


def _wait_for(tasks: Sequence[_Task], notes: Path, time_limit: float) -> None:
    last_progress = time.monotonic()
    while waiting := [task for task in tasks if not task.succeeded]:
        checkpoint()
        futures = [future for task in waiting for future in task.running()]
        wait(futures, timeout=_SECONDS_BETWEEN_LOOKS, return_when=FIRST_EXCEPTION)
        now, found_notes = time.monotonic(), _read_notes(notes)
        have_progress = [task.has_progress(now, found_notes) for task in waiting]
        if any(have_progress):
            last_progress = now
        late = [task for task in waiting if task.is_late(now, last_progress, time_limit)]
        if late:
            found = "; ".join(task.delay(time_limit) for task in late)
            if any(task.is_hopeless for task in late):
                raise WorkerError(f"{found}, again. Look at the workers, or raise time_limit.")
            warnings.warn(f"{found}. Other workers get these tasks.", stacklevel=2)
            for task in late:
                task.submit()


class _Attempt:
    """A task as it was given to a worker."""

    def __init__(self, future: Future[list[Any]], note: str):
        self.future, self.note = future, note
        self.submitted_at = time.monotonic()
        self.begun_at: float | None = None
        self.worker = ""

    @property
    def error(self) -> BaseException | None:
        """Why the attempt failed; None if it has not."""
        if self.future.cancelled():
            return CancelledError()
        return self.future.exception() if self.future.done() else None

    @property
    def succeeded(self) -> bool:
        return self.future.done() and self.error is None


class _Task:
    """A part of a pass, and the attempts to compute it."""

    def __init__(
        self,
        executor: Executor,
        run: RunTask,
        arguments: tuple[Any, ...],
        name: str,
        notes: Path,
    ):
        self._executor, self._run, self._arguments = executor, run, arguments
        self._name, self._notes = name, notes
        self.attempts: list[_Attempt] = []
        self.submit()

    def submit(self) -> None:
        """Give the task to some worker."""
        note = uuid.uuid4().hex
        try:
            future = self._executor.submit(self._run, *self._arguments, str(self._notes / note))
        except BrokenExecutor as error:
            raise self._lost(error) from error
        self.attempts.append(_Attempt(future, note))

    @property
    def succeeded(self) -> bool:
        return any(attempt.succeeded for attempt in self.attempts)

    def running(self) -> list[Future[list[Any]]]:
        return [attempt.future for attempt in self.attempts if not attempt.future.done()]

    def has_progress(self, now: float, notes: Mapping[str, str]) -> bool:
        """Whether the task has begun or ended since the last look.

        **Raises:** the error of the task, if all attempts failed.
        """
        if all(attempt.error is not None for attempt in self.attempts):
            self._fail(self.attempts[0].error)
        latest = self.attempts[-1]
        if latest.begun_at is None and latest.note in notes:
            latest.begun_at, latest.worker = now, notes[latest.note]
            return True
        return self.succeeded

    def is_late(self, now: float, last_progress: float, time_limit: float) -> bool:
        """Whether the task began long ago, or waits while no task begins or ends."""
        latest = self.attempts[-1]
        since = latest.begun_at or max(latest.submitted_at, last_progress)
        return not self.succeeded and now - since > time_limit

    @property
    def is_hopeless(self) -> bool:
        """Whether another attempt is unlikely to help."""
        begun = [attempt for attempt in self.attempts if attempt.begun_at is not None]
        return len(begun) >= _MOST_BEGUN or len(self.attempts) >= _MOST_ATTEMPTS

    def delay(self, seconds: float) -> str:
        """Who is late, as a phrase."""
        latest = self.attempts[-1]
        if latest.begun_at is None:
            return f"no worker has begun with {self._name} within {seconds:g} seconds"
        return f"{latest.worker} has not returned {self._name} within {seconds:g} seconds"

    def result(self) -> list[Any]:
        return next(attempt for attempt in self.attempts if attempt.succeeded).future.result()

    def cancel(self) -> None:
        for attempt in self.attempts:
            attempt.future.cancel()

    def _fail(self, error: BaseException | None) -> None:
        assert error is not None, "the attempt failed"
        is_lost = isinstance(error, (BrokenExecutor, CancelledError))
        if is_lost or type(error).__name__ in _LOST_ON_DASK:
            raise self._lost(error) from error
        raise error

    def _lost(self, error: BaseException) -> WorkerError:
        reason = str(error) or type(error).__name__
        return WorkerError(
            f"a worker was lost with {self._name}, and the executor did not replace it ({reason}). "
            "Run again, or resume a stored run, with a new executor."
        )


@contextlib.contextmanager
def _notes(folder: Path | None) -> Iterator[Path]:
    """A new folder for the notes of workers, if possible in `folder`."""
    try:
        path = Path(tempfile.mkdtemp(prefix=".tasks-", dir=folder))
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="tallmc-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
