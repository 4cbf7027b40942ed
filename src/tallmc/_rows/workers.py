"""Run a function on every shard, by threads of this process or by any executor.

A task is a pure function of the shards that it names. A task that was lost with its worker can
therefore be run again anywhere, with the same result. Results come back in the order of the shards,
whoever computed them.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import itertools
import os
import shutil
import socket
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from pathlib import Path
from typing import Any

import jax

from .._core.errors import InvalidInput, PreparationError, check_number, warn
from .._core.supervision import checkpoint, in_threads
from .pickled import pickled, unpickled

# Tasks of an executor: lost workers, hung workers, interrupts.
#
# A worker leaves a note when it begins with a task: an empty folder whose name says who it is.
# Making a folder is a single call of the system, and in a Dask worker every call may wait for
# Python's lock. A task that has begun and does not come back is given to another worker, with a
# warning that names the first one.

_SECONDS_BETWEEN_LOOKS = 0.25
_MOST_BEGUN, _MOST_ATTEMPTS = 2, 4
"""Attempts of a task that hung, and of all. An executor may give a task to a hung worker again."""
_LOST_ON_DASK = ("KilledWorker", "CommClosedError", "FutureCancelledError")

RunTask = Callable[..., list[Any]]
"""Called in a worker with the arguments of a task and the path of its note."""


class WorkerError(PreparationError):
    """A worker was lost or hung, and its work could not be done elsewhere."""


def results_of_tasks(
    executor: Executor,
    run: RunTask,
    arguments: Sequence[tuple[Any, ...]],
    names: Sequence[str],
    time_limit: float,
    folder: Path | None,
) -> list[list[Any]]:
    """`run(*arguments, note)` for the arguments of every task, in order.

    `names` say what the user calls each task. After `time_limit` seconds a task is given to another
    worker. The workers leave their notes in `folder`, which they share with this process.
    """
    with _notes(folder) as notes:
        tasks: list[_Task] = []
        try:
            for of_task, name in zip(arguments, names, strict=True):
                submit = functools.partial(executor.submit, run, *of_task)
                tasks.append(_Task(submit, name, notes))
            _wait_for(tasks, notes, time_limit)
            return [
                next(attempt for attempt in task.attempts if attempt.succeeded).future.result()
                for task in tasks
            ]
        finally:
            for attempt in (attempt for task in tasks for attempt in task.attempts):
                attempt.future.cancel()


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
        futures = [attempt.future for task in waiting for attempt in task.attempts]
        running = [future for future in futures if not future.done()]
        wait(running, timeout=_SECONDS_BETWEEN_LOOKS, return_when=FIRST_EXCEPTION)
        now, found_notes = time.monotonic(), _read_notes(notes)
        have_progress = [task.has_progress(now, found_notes) for task in waiting]
        if any(have_progress):
            last_progress = now
        late = [task for task in waiting if task.is_late(now, last_progress, time_limit)]
        if late:
            found = "; ".join(task.delay(time_limit) for task in late)
            if any(task.is_hopeless for task in late):
                raise WorkerError(f"{found}, again. Look at the workers, or raise time_limit.")
            warn(f"{found}. Other workers get these tasks.")
            for task in late:
                task.submit()


def _result_was_lost(error: BaseException) -> bool:
    """Whether Dask took the result of a task for an error.

    Its executor does so if the worker is lost after the result was fetched, and before the executor
    asks for the state of the task.
    """
    frames = traceback.extract_tb(error.__traceback__)
    is_dask = bool(frames) and frames[-1].name == "_cascade_future"
    return is_dask and isinstance(error, (ValueError, TypeError, AttributeError))


@dataclasses.dataclass
class _Attempt:
    """A task as it was given to a worker."""

    future: Future[list[Any]]
    note: str
    submitted_at: float
    begun_at: float | None = None
    worker: str = ""

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

    def __init__(self, submit: Callable[[str], Future[list[Any]]], name: str, notes: Path):
        self._submit, self._name, self._notes = submit, name, notes
        self.attempts: list[_Attempt] = []
        self.submit()

    def submit(self) -> None:
        note = uuid.uuid4().hex
        try:
            future = self._submit(str(self._notes / note))
        except BrokenExecutor as error:
            raise self._lost(error) from error
        self.attempts.append(_Attempt(future, note, time.monotonic()))

    @property
    def succeeded(self) -> bool:
        return any(attempt.succeeded for attempt in self.attempts)

    def has_progress(self, now: float, notes: Mapping[str, str]) -> bool:
        """Whether the task has begun or ended since the last look; raises if it failed."""
        if all(attempt.error is not None for attempt in self.attempts):
            error = self.attempts[0].error
            assert error is not None, "the attempt failed"
            if _result_was_lost(error) and len(self.attempts) < _MOST_ATTEMPTS:
                self.submit()
                return True
            is_lost = isinstance(error, (BrokenExecutor, CancelledError))
            if is_lost or type(error).__name__ in _LOST_ON_DASK:
                raise self._lost(error) from error
            raise error
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


ShardFunction = Callable[[Any, int, Any], Any]
"""`function(common, shard number, argument of this shard)`."""

_TASKS_PER_WORKER = 4
"""More tasks divide the work more evenly. Each costs a few milliseconds on a cluster."""
_WORKERS_IF_UNKNOWN = 16


@dataclasses.dataclass(frozen=True)
class Workers:
    """Those who read the shards: an executor whose workers can read them, or threads (None)."""

    executor: Executor | None = None
    time_limit: float = 600.0
    """Seconds after which a task that has not come back is given to another worker, with a warning
    that names the first one. If that does not help, the run ends with an error."""
    folder: Path | None = None
    """A folder that this process and the workers share. Workers note there what they began."""

    def __post_init__(self) -> None:
        if self.executor is not None and not isinstance(self.executor, Executor):
            rule = "be a concurrent.futures.Executor"
            has_one = callable(getattr(self.executor, "get_executor", None))
            cure = "A Dask client has one: client.get_executor()." if has_one else ""
            raise InvalidInput("executor", rule, type(self.executor).__name__, cure)
        check_number("time_limit", self.time_limit, 0, low_open=True)

    def each(self, function: ShardFunction, common: Any, of_shards: dict[int, Any]) -> list[Any]:
        """`function(common, number, argument)` for the arguments of shards, by their numbers.

        `function` is at module level. Executors get one pickled copy of `common` per task.
        """
        if self.executor is None:
            return in_threads(
                lambda shard: function(common, *shard), of_shards.items(), between=checkpoint
            )
        shards = list(of_shards.items())
        count = min(_TASKS_PER_WORKER * _worker_count(self.executor), len(shards))
        ends = [len(shards) * k // max(count, 1) for k in range(count + 1)]
        parts = [shards[begin:end] for begin, end in itertools.pairwise(ends)]
        double = bool(jax.config.read("jax_enable_x64"))
        # Dask learns the duration of a function by its name, so it gets a function at module level.
        if isinstance(self.executor, ThreadPoolExecutor):
            run: Callable[..., list[Any]] = _run
            first: tuple[Any, ...] = (function, common, double)
        else:
            run, first = _run_pickled, (pickled((function, common, double)),)
        tasks = [(*first, part) for part in parts]
        names = [_named(part) for part in parts]
        results = results_of_tasks(self.executor, run, tasks, names, self.time_limit, self.folder)
        return [result for of_part in results for result in of_part]


def _run_pickled(content: bytes, part: Sequence[Any], note: str) -> list[Any]:
    """`_run` with its first arguments as bytes, which a worker unpickles once for all its tasks."""
    _keep_freed_memory()
    function, common, double = _unpickled(content)
    return _run(function, common, double, part, note)


_unpickled = functools.lru_cache(maxsize=4)(unpickled)


_TRIM, _MAP = (-1, 2**27), (-3, 2**25)
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc: the values that it reaches by itself."""


@functools.cache
def _keep_freed_memory() -> None:
    """Undo MALLOC_TRIM_THRESHOLD_=65536, which Dask sets in its workers.

    With it, glibc returns the buffers of every block to the system, which must clear the pages of
    the next ones. A pass then takes 1.5 times the processor time.
    """
    if os.environ.get("MALLOC_TRIM_THRESHOLD_") == "65536":
        with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(*_TRIM)
            mallopt(*_MAP)


def _run(
    function: ShardFunction, common: Any, double: bool, part: Sequence[Any], note: str
) -> list[Any]:
    write_note(note)
    with jax.enable_x64(double):
        return [function(common, *shard) for shard in part]


def _worker_count(executor: Executor) -> int:
    """The number of tasks that run at the same time, as far as the executor tells."""
    of_pool = getattr(executor, "_max_workers", None)
    if of_pool is not None:
        return of_pool
    threads_of_cluster = getattr(getattr(executor, "_client", None), "nthreads", None)
    if callable(threads_of_cluster):
        return max(1, sum(threads_of_cluster().values()))
    return _WORKERS_IF_UNKNOWN


def _named(part: Sequence[tuple[int, Any]]) -> str:
    first, last = part[0][0], part[-1][0]
    return f"shard {first}" if first == last else f"shards {first} to {last}"
