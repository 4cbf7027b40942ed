"""Run a function on every shard, by threads of this process or by any executor.

A task is a pure function of the shards that it names. A task that was lost with its worker can
therefore be run again anywhere, with the same result. Results come back in the order of the shards,
whoever computed them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from ..core.errors import InvalidInput, check_number
from ..core.supervision import checkpoint
from ..core.threads import in_threads
from .pickled import pickled, unpickled
from .tasks import results_of_tasks, write_note

ShardFunction = Callable[[Any, int, Any], Any]
"""`function(common, shard number, argument of this shard)`."""

_TASKS_PER_WORKER = 4
"""More tasks divide the work more evenly. Each costs a few milliseconds on a cluster."""
_WORKERS_IF_UNKNOWN = 16


@dataclasses.dataclass(frozen=True)
class Workers:
    """Those who read the shards.

    **Arguments:**

    - `executor`: any `concurrent.futures.Executor` whose workers can read the shards. None uses
      the threads of this process.
    - `time_limit`: seconds after which a task that has not come back is given to another worker,
      with a warning that names the first one. If that does not help, the run ends with an error.
    - `folder`: a folder that this process and the workers share. Workers note there which task
      they have begun with.

    >>> Workers().time_limit
    600.0
    """

    executor: Executor | None = None
    time_limit: float = 600.0
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.executor is not None and not isinstance(self.executor, Executor):
            rule = "be a concurrent.futures.Executor"
            has_one = callable(getattr(self.executor, "get_executor", None))
            cure = "A Dask client has one: client.get_executor()." if has_one else ""
            raise InvalidInput("executor", rule, type(self.executor).__name__, cure)
        check_number("time_limit", self.time_limit, 0, low_open=True)

    def each(self, function: ShardFunction, common: Any, of_shards: dict[int, Any]) -> list[Any]:
        """`function(common, number, argument)` for the shards and arguments in `of_shards`.

        **Arguments:**

        - `function`: a function at module level.
        - `common`: an argument that all shards share. Executors get one pickled copy per task.
        - `of_shards`: the argument of each shard, by its number.

        **Returns:** the results, in the order of `of_shards`.

        **Raises:** `WorkerError` if a worker was lost for good or hung twice.
        """
        if self.executor is None:
            return in_threads(
                lambda shard: function(common, *shard), of_shards.items(), between=checkpoint
            )
        shards = list(of_shards.items())
        count = min(_TASKS_PER_WORKER * _worker_count(self.executor), len(shards))
        parts = [
            shards[len(shards) * k // count : len(shards) * (k + 1) // count] for k in range(count)
        ]
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
    function, common, double = _unpickled(content)
    return _run(function, common, double, part, note)


_unpickled = functools.lru_cache(maxsize=4)(unpickled)


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
