"""The chains of a run, in groups that run at the same time.

XLA runs the steps of a program mostly on one core. On a CPU the chains are therefore divided into
groups, and each thread runs one group at a time. The division depends on the number of chains, not
on the number of cores or emulated devices. On other devices there is one group per device.

Groups take turns on the devices that were chosen (`devices.py`). Rows in memory are copied to each
device. Rows that NumPy gathers are sent with the supply of a block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from ..core.pytrees import Static, split
from ..core.random import folded_on_host, key_of
from ..core.threads import in_threads
from ..rows.absent import AbsentRows
from ..rows.sharded import ShardedRows
from .devices import chosen_devices
from .kernel import BoundKernel
from .loop import Record, RecordedSteps, RunState, Stepper, Window, advance, start_chains
from .remote import RemoteGroups
from .supply import INIT_KEY, Supply

_FEWEST_PER_GROUP, _MOST_PER_GROUP = 4, 128
_MOST_OF_A_GPU, _FEWEST_OF_A_GPU, _PARAMETERS_OF_A_GPU = 1024, 64, 2**16
_GROUPS_OF_MANY = 16


def chains_at_once(dim: int) -> int:
    """The number of chains that one program runs best: a group on a CPU, many on a GPU.

    With many parameters, fewer chains fill a GPU, and their draws would take much memory.
    """
    if jax.default_backend() == "cpu":
        return _FEWEST_PER_GROUP
    fitting = 1 << (max(_PARAMETERS_OF_A_GPU // dim, 1).bit_length() - 1)
    return min(_MOST_OF_A_GPU, max(_FEWEST_OF_A_GPU, fitting))


class Place(NamedTuple):
    """A device, with what the groups there need."""

    device: jax.Device | None
    """None leaves the choice to JAX."""
    supply: Supply
    arrays: list[Any]
    static: Static
    """The parts of a `Stepper`."""

    def put(self, values: Any) -> Any:
        """The values, on this device."""
        return values if self.device is None else jax.device_put(values, self.device)


class Chains:
    """The states of all chains, and the way to advance them.

    **Arguments:**

    - `bound`: the kernel and its rows.
    - `keys`: one per chain.
    - `record`: returns further values to record per step, by name.
    - `finer`: chains with the same keys that take two steps for each step of these (see `Supply`).
    """

    def __init__(
        self,
        bound: BoundKernel,
        keys: Key[Array, " chains"],
        record: Record | None,
        finer: Chains | None = None,
    ):
        self.n_chains = keys.shape[0]
        devices = chosen_devices() or (None,)
        divisible = bound.chain_axes is None
        self.members = _groups(self.n_chains, divisible, len(devices))
        """The chains of each group. The last chain may be in its group more than once."""
        words = np.asarray(jax.random.key_data(keys))
        self._keys = [key_of(words[members]) for members in self.members]
        supply_of_finer = None if finer is None else finer.supply
        self.supply: Supply = Supply(
            bound.kernel, bound.rows, self._keys, bound.chain_axes, supply_of_finer
        )
        self._places = [
            _place(device, self.supply, record) for device in devices[: len(self.members)]
        ]
        self._remote = None
        if finer is None and record is None and isinstance(bound.rows, ShardedRows):
            of_groups = [words[members] for members in self.members]
            self._remote = RemoteGroups.if_chosen(bound, of_groups)
        self._states: list[RunState] = []
        self._supplies: list[tuple[int, Any] | None] = [None] * len(self.members)

    def start(self, positions: Float[Array, "chains d"], memory: Any) -> None:
        """Make the states before the first step, with this memory, stacked."""

        def start_group(group: int) -> RunState:
            place = self._place_of(group)
            return start_chains(
                place.arrays,
                folded_on_host(self._keys[group], INIT_KEY),
                self._of_group(positions, group),
                self._of_group(memory, group),
                place.put(place.supply.for_start(group)),
                static=place.static,
            )

        first = start_group(0)  # compiles
        self._states = [first, *in_threads(start_group, range(1, len(self.members)))]

    @property
    def state(self) -> RunState:
        """The states of all chains, stacked."""
        return jax.device_put(self._joined(self._states, axis=0))

    @state.setter
    def state(self, state: RunState) -> None:
        self._states = [self._of_group(state, group) for group in range(len(self.members))]

    def outcomes(self) -> np.ndarray:
        """The outcome of every chain so far."""
        return np.asarray(self._joined([state.outcome for state in self._states], axis=0))

    def compile(self, window: Window, slots: int, stop: int) -> None:
        """Compile the program of the steps, with a `window` without steps.

        The steps up to `stop` are likely to follow.
        """
        if self._remote is not None:
            self._remote.advance(self._states, window, slots, stop)
            return
        self._prepare(window, stop)
        in_threads(
            lambda group: self._advance_group(group, window, slots), range(len(self._places))
        )

    def advance(self, window: Window, slots: int, stop: int) -> RecordedSteps:
        """Run the steps of the window, which are in one block; return the records of all chains.

        The steps up to `stop` are likely to follow.
        """
        if self._remote is not None:
            results = self._remote.advance(self._states, window, slots, stop)
        else:
            self._prepare(window, stop)
            results = in_threads(
                lambda group: self._advance_group(group, window, slots), range(len(self.members))
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
        self, group: int, window: Window, slots: int
    ) -> tuple[RunState, RecordedSteps]:
        steps, place = self.supply.steps, self._place_of(group)
        number, made = int(window.first) // steps, self._supplies[group]
        if made is None or made[0] != number:
            made = (number, place.put(place.supply.block(group, number)))
            self._supplies[group] = made
        return jax.block_until_ready(
            advance(
                place.arrays,
                self._states[group],
                made[1],
                window,
                static=place.static,
                block=steps,
                slots=slots,
            )
        )

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
    if device is not None and not isinstance(supply.source_of_steps, AbsentRows):
        kernel, rows = _moved((supply.kernel, supply.source), device)
        supply = Supply(kernel, rows, supply.keys, supply.chain_axes, supply.finer)
    stepper = Stepper(supply.stepper, supply.source_of_steps, supply.chain_axes, record)
    return Place(device, supply, *split(stepper if device is None else _moved(stepper, device)))


def _moved(tree: Any, device: jax.Device) -> Any:
    arrays, static = split(tree)
    return static.joined(jax.device_put(arrays, device))


def _groups(n_chains: int, divisible: bool, n_devices: int = 1) -> list[np.ndarray]:
    """The chain numbers of each group. All groups have the same size."""
    if not divisible:
        count = 1
    elif jax.default_backend() == "cpu":
        size = min(_MOST_PER_GROUP, max(_FEWEST_PER_GROUP, n_chains // _GROUPS_OF_MANY))
        count = -(-n_chains // size)
    else:
        count = min(n_devices, n_chains)
    size = -(-n_chains // count)
    numbers = np.minimum(np.arange(count * size), n_chains - 1)
    return list(numbers.reshape(count, size))
