"""Run a function on every shard, by threads of this process or by any executor.

A task is a pure function of the shards that it names. A task that was lost with its worker can
therefore be run again anywhere, with the same result. Results come back in the order of the shards,
whoever computed them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import socket
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import cloudpickle
import jax

from ..core.errors import InvalidInput, PreparationError, check_number
from ..core.supervision import checkpoint
from ..core.threads import in_threads

ShardFunction = Callable[[Any, int, Any], Any]
"""`function(common, shard number, argument of this shard)`."""

_MOST_TASKS = 32
"""Tasks of a pass. Each costs about a millisecond on a cluster."""
_SECONDS_BETWEEN_LOOKS = 0.5
_TRIES = 2


class WorkerError(PreparationError):
    """A worker was lost or hung, and its work could not be done elsewhere.

    >>> issubclass(WorkerError, PreparationError)
    True
    """


@dataclasses.dataclass(frozen=True)
class Workers:
    """Those who read the shards.

    **Arguments:**

    - `executor`: any `concurrent.futures.Executor` whose workers can read the shards. None uses
      the threads of this process.
    - `time_limit`: seconds after which a task that has not come back is given to another worker,
      with a warning that names the first one. If that does not help, the run ends with an error.

    >>> Workers().time_limit
    600.0
    """

    executor: Executor | None = None
    time_limit: float = 600.0

    def __post_init__(self) -> None:
        if self.executor is not None and not callable(getattr(self.executor, "submit", None)):
            rule = "be a concurrent.futures.Executor"
            cure = "A Dask client has one: client.get_executor()."
            raise InvalidInput("executor", rule, type(self.executor).__name__, cure)
        check_number("time_limit", self.time_limit, 0, low_open=True)

    def each(self, function: ShardFunction, common: Any, of_shards: dict[int, Any]) -> list[Any]:
        """`function(common, number, argument)` for the shards and arguments in `of_shards`.

        **Arguments:**

        - `function`: a function at module level.
        - `common`: an argument that all shards share. Executors get one pickled copy per task.
        - `of_shards`: the argument of each shard, by its number.

        **Returns:** the results, in the order of `of_shards`.
        """
        if self.executor is None:
            return in_threads(lambda shard: function(common, *shard), of_shards.items())
        count = min(_MOST_TASKS, len(of_shards))
        shards = list(of_shards.items())
        parts = [
            shards[len(shards) * k // count : len(shards) * (k + 1) // count] for k in range(count)
        ]
        if isinstance(self.executor, ThreadPoolExecutor):
            run: Any = functools.partial(_run, function, common, _uses_double())
        else:
            run = _PickledRun(cloudpickle.dumps((function, common, _uses_double())))
        return [result for results in self._results(run, parts) for result in results]

    def _results(self, run: Callable[..., list[Any]], parts: Sequence[Any]) -> list[list[Any]]:
        assert self.executor is not None
        with _notes() as notes:
            tasks = [_Task(self.executor, run, part, notes) for part in parts]
            last_end = time.monotonic()
            while waiting := [task for task in tasks if not task.done]:
                checkpoint()
                futures = [future for task in waiting for future in task.futures]
                wait(futures, timeout=_SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
                if any(task.done for task in waiting):
                    last_end = time.monotonic()
                elif time.monotonic() - last_end > self.time_limit:
                    for task in waiting:
                        task.try_again(self.time_limit)
                    last_end = time.monotonic()
            return [task.result() for task in tasks]


class _Task:
    """The shards of one task, and the futures of its attempts."""

    def __init__(self, executor: Executor, run: Callable[..., list[Any]], part: Any, notes: Path):
        self._executor, self._run, self._part = executor, run, part
        self._note = notes / uuid.uuid4().hex
        self.futures: list[Future[list[Any]]] = []
        self._submit()

    @property
    def done(self) -> bool:
        return any(future.done() for future in self.futures)

    def result(self) -> list[Any]:
        finished = next(future for future in self.futures if future.done())
        for future in self.futures:
            future.cancel()
        try:
            return finished.result()
        except (InvalidInput, MemoryError, KeyboardInterrupt):
            raise
        except Exception as error:
            if type(error).__name__ in ("BrokenProcessPool", "KilledWorker", "BrokenThreadPool"):
                raise WorkerError(
                    f"a worker was lost while it read {self._shards}, and the executor did not "
                    f"replace it ({error}). Resume the run with another executor."
                ) from error
            raise

    def try_again(self, seconds: float) -> None:
        """Give the task to another worker, if the first one has begun with it."""
        found = self._note.read_text() if self._note.exists() else None
        worker = found or "no worker has begun with it"
        message = f"{self._shards} did not come back within {seconds:g} seconds ({worker})"
        if len(self.futures) >= _TRIES:
            raise WorkerError(f"{message}, twice. Look at this worker, or raise time_limit.")
        warnings.warn(f"{message}: another worker gets the task.", stacklevel=6)
        self._submit()

    def _submit(self) -> None:
        self.futures.append(self._executor.submit(self._run, self._part, str(self._note)))

    @property
    def _shards(self) -> str:
        first, last = self._part[0][0], self._part[-1][0]
        return f"shard {first}" if first == last else f"shards {first} to {last}"


class _PickledRun:
    """`_run` with its arguments as bytes, which the worker unpickles once for all its tasks."""

    def __init__(self, payload: bytes):
        self.payload = payload

    def __call__(self, part: Any, note: str) -> list[Any]:
        return _run(*_unpickled(self.payload), part, note)


@functools.lru_cache(maxsize=4)
def _unpickled(payload: bytes) -> tuple[ShardFunction, Any, bool]:
    return cloudpickle.loads(payload)


def _run(
    function: ShardFunction, common: Any, double: bool, part: Sequence[Any], note: str
) -> list[Any]:
    with contextlib.suppress(OSError):
        Path(note).write_text(f"host {socket.gethostname()}, process {os.getpid()}")
    with jax.enable_x64(double):
        return [function(common, *shard) for shard in part]


def _uses_double() -> bool:
    return bool(jax.config.read("jax_enable_x64"))


@contextlib.contextmanager
def _notes() -> Iterator[Path]:
    """A folder in which workers note who has begun with a task."""
    with tempfile.TemporaryDirectory(prefix="tallmc-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
