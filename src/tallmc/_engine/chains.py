"""The chains of a run, in groups that run at the same time.

XLA runs the steps of a program mostly on one core. On a CPU the chains are therefore divided into
groups, and each thread runs one group at a time. The division depends on the number of chains, not
on the number of cores or emulated devices. On other devices there is one group per device.

Groups take turns on the devices that were chosen. Rows in memory are copied to each
device. Rows that NumPy gathers are sent with the supply of a block.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key

from .._core.errors import InvalidInput, check_int
from .._core.programs import Static, split
from .._core.random import folded_on_host, key_of
from .._core.supervision import in_background, in_threads
from .._rows.pickled import pickled, unpickled
from .._rows.resident import AbsentRows
from .._rows.sharded import ShardedRows
from .._rows.workers import Workers, results_of_tasks, write_note
from .kernel import AbstractKernel, BoundKernel, Gathered
from .loop import Record, RecordedSteps, RunState, Stepper, Window, advance, start_chains
from .supply import INIT_KEY, Supply

# The devices on which the chains of a run advance.
#
# `sample` chooses them for the whole run: pilot chains, chains and checks. `Chains` finds the
# choice through a context variable, because the methods between the two know nothing of it.

_chosen: contextvars.ContextVar[tuple[jax.Device, ...] | None] = contextvars.ContextVar(
    "devices", default=None
)


@contextlib.contextmanager
def chains_on(devices: int | Sequence[jax.Device] | None) -> Iterator[None]:
    """Run the chains of the block on these devices; None leaves the choice to JAX."""
    token = _chosen.set(None if devices is None else _checked(devices))
    try:
        yield
    finally:
        _chosen.reset(token)


def _checked(devices: int | Sequence[jax.Device]) -> tuple[jax.Device, ...]:
    local = jax.local_devices()
    if not isinstance(devices, Sequence) or isinstance(devices, str):
        name = f"number of local {local[0].platform} devices"
        cure = "jax.local_devices() lists them."
        count = check_int("devices", devices, 1, len(local), high_name=name, cure=cure)
        return tuple(local[:count])
    if not devices or len(set(devices)) < len(devices) or not set(devices) <= set(local):
        raise InvalidInput("devices", "be different devices of jax.local_devices()", devices)
    return tuple(devices)


# Groups of chains that advance in the workers of an executor.
#
# A call of the loop is one task per group: a pure function of the kernel, the keys of the group,
# its state and the window of steps. A worker that has the kernel already, and the rows of a block,
# keeps them for the next call. It reads the rows of its chains itself, from the shards. A task that
# was lost can run again anywhere, and the draws are those of chains in this process.

_chosen_workers: contextvars.ContextVar[Workers | None] = contextvars.ContextVar(
    "workers", default=None
)


@contextlib.contextmanager
def chains_split_over(workers: Workers | None) -> Iterator[None]:
    """Advance the chains of the block in these workers; None in this process."""
    token = _chosen_workers.set(workers)
    try:
        yield
    finally:
        _chosen_workers.reset(token)


def workers_for_chains(posterior: Any, split_chains: bool) -> Workers | None:
    """The workers of the posterior's rows, if its chains are to be split over them."""
    if not split_chains:
        return None
    rows = posterior.rows
    if not isinstance(rows, ShardedRows) or rows.workers.executor is None:
        cure = "Pass executor=... and the rows of a row store."
        raise InvalidInput("split_chains", "come with an executor that reads rows", True, cure)
    return rows.workers


class RemoteGroups:
    """The groups of chains of one run, by the words of their keys, and who advances them."""

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

    def advance(
        self, states: Sequence[RunState], window: Window, slots: int, stop: int
    ) -> list[tuple[RunState, RecordedSteps]]:
        """Run the steps of the window in all groups; those up to `stop` are likely to follow."""
        executor = self._workers.executor
        assert executor is not None, "`workers_for_chains` checks it"
        on_host = [jax.tree.map(np.asarray, state) for state in states]
        tasks = [((group, state, window, slots, stop),) for group, state in enumerate(on_host)]
        run = functools.partial(_advance_in_worker, self._payload)
        limit, folder = self._workers.time_limit, self._workers.folder
        results = results_of_tasks(executor, run, tasks, self._names, limit, folder)
        return [result for of_task in results for result in of_task]


def _advance_in_worker(payload: bytes, task: Any, note: str) -> list[Any]:
    """Advance one group; the kernel and the keys travel as bytes."""
    write_note(note)
    group, *arguments = task
    return [_group(payload, group).advance(*arguments)]


class _Group(NamedTuple):
    place: Place
    double: bool

    def advance(
        self, state: RunState, window: Window, slots: int, stop: int
    ) -> tuple[RunState, RecordedSteps]:
        supply = self.place.supply
        number = int(window.first) // supply.steps
        with jax.enable_x64(self.double):
            supply.prepare(number, -(-stop // supply.steps))
            moved = self.place.advance(state, supply.block(0, number), window, slots)
            return jax.tree.map(np.asarray, moved)


@functools.lru_cache(maxsize=8)
def _group(payload: bytes, number: int) -> _Group:
    bound, words, double = unpickled(payload)
    with jax.enable_x64(double):
        supply = Supply(bound.kernel, bound.rows, [key_of(words[number])])
        return _Group(_place(None, supply, None), double)


_MOST_PER_GROUP = 128
_MOST_OF_A_GPU, _FEWEST_OF_A_GPU, _PARAMETERS_OF_A_GPU = 1024, 64, 2**16
_GROUPS_OF_MANY = 16


def chains_at_once(dim: int) -> int:
    """The number of chains that one program runs best: a group on a CPU, many on a GPU.

    With many parameters, fewer chains fill a GPU, and their draws would take much memory.
    """
    if jax.default_backend() == "cpu":
        return AbstractKernel.fewest_per_group
    fitting = 1 << (max(_PARAMETERS_OF_A_GPU // dim, 1).bit_length() - 1)
    return min(_MOST_OF_A_GPU, max(_FEWEST_OF_A_GPU, fitting))


class Place(NamedTuple):
    """A device, with what the groups there need."""

    device: jax.Device | None  # None leaves the choice to JAX
    supply: Supply
    arrays: list[Any]
    static: Static  # the parts of a `Stepper`

    def put(self, values: Any) -> Any:
        return values if self.device is None else jax.device_put(values, self.device)

    def advance(
        self, state: RunState, supply: Any, window: Window, slots: int
    ) -> tuple[RunState, RecordedSteps]:
        """Run the steps of the window with this supply of their block."""
        return advance(self.arrays, state, supply, window, static=self.static, slots=slots)


class Chains:
    """The states of all chains, and the way to advance them; the arguments are those of a `Run`."""

    def __init__(
        self,
        bound: BoundKernel,
        keys: Key[Array, " chains"],
        record: Record | None,
        finer: Chains | None = None,
    ):
        self.n_chains = keys.shape[0]
        devices = _chosen.get() or (None,)
        self.members = _groups(self.n_chains, len(devices), fewest=bound.kernel.fewest_per_group)
        """The chains of each group. The last chain may be in its group more than once."""
        words = np.asarray(jax.random.key_data(keys))
        self._keys = [key_of(words[members]) for members in self.members]
        supply_of_finer = None if finer is None else finer.supply
        self.supply: Supply = Supply(bound.kernel, bound.rows, self._keys, supply_of_finer)
        used = devices[: len(self.members)]
        self._places = [_place(device, self.supply, record) for device in used]
        self._remote: RemoteGroups | None = None
        workers, is_plain = _chosen_workers.get(), finer is None and record is None
        if workers is not None and is_plain and isinstance(bound.rows, ShardedRows):
            self._remote = RemoteGroups(workers, bound, [words[group] for group in self.members])
        self._states: list[RunState] = []
        self._supplies: list[tuple[int, Any] | None] = [None] * len(self.members)
        self._coming: tuple[int, Future[Any] | None] = -1, None

    def start(self, positions: Float[Array, "chains d"], carried: Any) -> None:
        """Make the states before the first step, with this memory, stacked."""

        def start_group(group: int) -> RunState:
            place = self._place_of(group)
            return start_chains(
                place.arrays,
                key_of(folded_on_host(self._keys[group], np.array([INIT_KEY], np.uint32))[0]),
                self._of_group(positions, group),
                self._of_group(carried, group),
                place.put(place.supply.for_start(group)),
                static=place.static,
            )

        first = start_group(0)  # compiles
        self._states = [first, *in_threads(start_group, range(1, len(self.members)))]

    @property
    def state(self) -> RunState:
        return jax.device_put(self._joined(self._states, axis=0))

    @state.setter
    def state(self, state: RunState) -> None:
        self._states = [self._of_group(state, group) for group in range(len(self.members))]

    def outcomes(self) -> np.ndarray:
        return np.asarray(self._joined([state.outcome for state in self._states], axis=0))

    def compile(self, window: Window, slots: int, stop: int) -> None:
        """Compile the program with a `window` without steps; those up to `stop` are to follow."""
        if self._remote is not None:
            self._remote.advance(self._states, window, slots, stop)
            return
        self._prepare(window, stop)
        in_threads(
            lambda group: self._advance_group(group, window, slots), range(len(self._places))
        )

    def advance(self, window: Window, slots: int, stop: int) -> RecordedSteps:
        """Run the steps of the window, in one block; those up to `stop` are likely to follow."""
        if self._remote is not None:
            results = self._remote.advance(self._states, window, slots, stop)
        else:
            self._prepare(window, stop)
            results = in_threads(
                lambda group: self._advance_group(group, window, slots, stop),
                range(len(self.members)),
            )
        self._states = [state for state, _ in results]
        records = [record for _, record in results]
        return RecordedSteps(
            self._joined([record.positions for record in records], axis=1),
            self._joined([record.stats for record in records], axis=1),
            self._joined([record.n_rows for record in records], axis=0),
        )

    def _prepare(self, window: Window, stop: int) -> None:
        steps = self.supply.steps
        self.supply.prepare(int(window.first) // steps, -(-stop // steps))

    def _advance_group(
        self, group: int, window: Window, slots: int, stop: int = 0
    ) -> tuple[RunState, RecordedSteps]:
        steps, place = self.supply.steps, self._place_of(group)
        number, made = int(window.first) // steps, self._supplies[group]
        if made is None or made[0] != number:
            block = self._block_ahead(number) or place.supply.block(group, number)
            made = (number, place.put(block))
            self._supplies[group] = made
        # The steps of a single group keep one core busy. Another one supplies the next block.
        is_over = window.first < window.stop == (number + 1) * steps
        if is_over and window.stop < stop and len(self.members) == 1 and place.supply.in_any_order:
            self._coming = number + 1, in_background(lambda: place.supply.block(group, number + 1))
        moved = place.advance(self._states[group], made[1], window, slots)
        return jax.block_until_ready(moved)

    def _block_ahead(self, number: int) -> Gathered | None:
        """The block that another thread has supplied; None if it has not, or failed."""
        (expected, coming), self._coming = self._coming, (-1, None)
        if coming is None or expected != number or coming.cancel():
            return None
        return coming.result()

    def _place_of(self, group: int) -> Place:
        return self._places[group % len(self._places)]

    def _of_group(self, values: Any, group: int) -> Any:
        if len(self.members) == 1:
            return values
        return jax.tree.map(lambda leaf: np.asarray(leaf)[self.members[group]], values)

    def _joined(self, of_groups: list[Any], axis: int) -> Any:
        if len(of_groups) == 1 and self._places[0].device is None:
            return of_groups[0]

        def join(*leaves: Any) -> np.ndarray:
            every = np.concatenate([np.asarray(leaf) for leaf in leaves], axis=axis)
            return every[: self.n_chains] if axis == 0 else every[:, : self.n_chains]

        return jax.tree.map(join, *of_groups)


def _place(device: jax.Device | None, supply: Supply, record: Record | None) -> Place:
    """A place on this device, with the kernel and, if the device reads them, the rows."""
    if device is not None and not isinstance(supply.rows_of_steps, AbsentRows):
        kernel, rows = _moved((supply.kernel, supply.rows), device)
        supply = Supply(kernel, rows, supply.keys, supply.finer)
    stepper = Stepper(supply.stepper, supply.rows_of_steps, record)
    return Place(device, supply, *split(stepper if device is None else _moved(stepper, device)))


def _moved(tree: Any, device: jax.Device) -> Any:
    arrays, static = split(tree)
    return static.joined(jax.device_put(arrays, device))


def _groups(n_chains: int, n_devices: int = 1, *, fewest: int) -> list[np.ndarray]:
    """The chain numbers of each group. All groups have the same size."""
    if jax.default_backend() == "cpu":
        size = min(_MOST_PER_GROUP, max(fewest, n_chains // _GROUPS_OF_MANY))
        count = -(-n_chains // size)
    else:
        count = min(n_devices, n_chains)
    size = -(-n_chains // count)
    numbers = np.minimum(np.arange(count * size), n_chains - 1)
    return list(numbers.reshape(count, size))
