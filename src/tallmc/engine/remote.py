"""Groups of chains that advance in the workers of an executor.

A call of the loop is one task per group: a pure function of the kernel, the keys of the group, its
state and the window of steps. A worker that has the kernel already, and the rows of a block, keeps
them for the next call. It reads the rows of its chains itself, from the shards. A task that was
lost can run again anywhere, and the draws are those of chains in this process.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from ..core.errors import InvalidInput
from ..core.pytrees import Static, split
from ..core.random import key_of
from ..rows.pickled import pickled, unpickled
from ..rows.sharded import ShardedRows
from ..rows.tasks import results_of_tasks, write_note
from ..rows.workers import Workers
from .kernel import BoundKernel
from .loop import RecordedSteps, RunState, Stepper, Window, advance
from .supply import Supply

_chosen: contextvars.ContextVar[Workers | None] = contextvars.ContextVar("workers", default=None)


@contextlib.contextmanager
def chains_split_over(workers: Workers | None) -> Iterator[None]:
    """Advance the chains of the block in these workers; None in this process.

    >>> with chains_split_over(None):
    ...     pass
    """
    token = _chosen.set(workers)
    try:
        yield
    finally:
        _chosen.reset(token)


def workers_for_chains(posterior: Any, split_chains: bool) -> Workers | None:
    """The workers of the posterior's rows, if its chains are to be split over them.

    **Raises:** `InvalidInput` if no executor reads the rows.
    """
    if not split_chains:
        return None
    rows = posterior.rows
    if not isinstance(rows, ShardedRows) or rows.workers.executor is None:
        cure = "Pass executor=... and the rows of a row store."
        raise InvalidInput("split_chains", "come with an executor that reads rows", True, cure)
    return rows.workers


class RemoteGroups:
    """The groups of chains of one run.

    **Arguments:**

    - `workers`: those who advance them.
    - `bound`: the kernel and its rows.
    - `words`: the words of the keys of each group.
    """

    def __init__(self, workers: Workers, bound: BoundKernel, words: Sequence[np.ndarray]):
        self._workers = workers
        rows = bound.rows
        assert isinstance(rows, ShardedRows)
        alone = eqx.tree_at(
            lambda b: b.posterior.rows,
            bound,
            rows.read_by(Workers()),
            is_leaf=lambda part: isinstance(part, ShardedRows),
        )
        double = bool(jax.config.read("jax_enable_x64"))
        self._payload = pickled((alone, list(words), double))
        self._names = [f"chains of group {k}" for k in range(len(words))]

    @classmethod
    def if_chosen(cls, bound: BoundKernel, words: Sequence[np.ndarray]) -> RemoteGroups | None:
        """The groups, if `chains_split_over` has chosen workers."""
        workers = _chosen.get()
        return None if workers is None else cls(workers, bound, words)

    def advance(
        self, states: Sequence[RunState], window: Window, slots: int, stop: int
    ) -> list[tuple[RunState, RecordedSteps]]:
        """Run the steps of the window in all groups; those up to `stop` are likely to follow."""
        executor = self._workers.executor
        assert executor is not None, "`workers_for_chains` checks it"
        on_host = [jax.tree.map(np.asarray, state) for state in states]
        tasks = [((group, state, window, slots, stop),) for group, state in enumerate(on_host)]
        run = _AdvanceInWorker(self._payload)
        limit, folder = self._workers.time_limit, self._workers.folder
        results = results_of_tasks(executor, run, tasks, self._names, limit, folder)
        return [result for of_task in results for result in of_task]


class _AdvanceInWorker:
    """Advances one group; the kernel and the keys travel as bytes."""

    def __init__(self, payload: bytes):
        self.payload = payload

    def __call__(self, task: Any, note: str) -> list[tuple[RunState, RecordedSteps]]:
        write_note(note)
        group, state, window, slots, stop = task
        return [_group(self.payload, group).advance(state, window, slots, stop)]


class _Group(NamedTuple):
    """A group of chains in a worker."""

    supply: Supply
    arrays: list[Any]
    static: Static
    double: bool

    def advance(
        self, state: RunState, window: Window, slots: int, stop: int
    ) -> tuple[RunState, RecordedSteps]:
        steps = self.supply.steps
        number = int(window.first) // steps
        with jax.enable_x64(self.double):
            self.supply.prepare(number, -(-stop // steps))
            moved = advance(
                self.arrays,
                state,
                self.supply.block(0, number),
                window,
                static=self.static,
                block=steps,
                slots=slots,
            )
            return jax.tree.map(np.asarray, moved)


@functools.lru_cache(maxsize=8)
def _group(payload: bytes, number: int) -> _Group:
    bound, words, double = unpickled(payload)
    with jax.enable_x64(double):
        supply = Supply(bound.kernel, bound.rows, [key_of(words[number])])
        arrays, static = split(Stepper(supply.stepper, supply.source_of_steps))
    return _Group(supply, arrays, static, double)
