"""The supply of a block of steps: its random numbers, and the rows that are known ahead.

Step t of a chain belongs to block t // K. One vectorised call draws the randomness of a block from
`fold_in(chain key, block number)`. The random numbers of step t therefore depend only on the seed,
the chain and t, and a run may be cut at any step and continued from there.

On a CPU the rows of independent draws are gathered by NumPy, from the memory that holds them.
Neither the program that draws nor the one that steps then depends on the number of rows. Other
rows are gathered by a compiled program, ahead of the steps if a block of them fits in memory, and
otherwise in each step. Rows that are not in memory are read for many blocks at once (`RowsAhead`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from .._core.programs import Static, quickly_compiled, split
from .._core.random import folded_on_host, key_of
from .._rows.access import AbstractRows, RowAccess
from .._rows.resident import AbsentRows
from .._rows.sharded import ShardedRows
from ..dynamics.dynamics import AbstractDynamics
from ..subsample.measured import MeasuredSelection
from ..subsample.selection import WithReplacement
from .kernel import AbstractKernel, Drawn, Gathered, Kernel

# Rows that are not in memory: read for many blocks of steps in one visit, and ahead of the steps.
#
# A visit costs about as much as a pass over all rows, however few rows it brings. It therefore
# brings the rows of as many blocks as will be needed and fit in memory, and while the device runs
# these blocks, a thread makes the next visit. How many blocks a visit brings changes no draw,
# because the random words of a draw depend only on the seed, the chain and the step.

_FLOATS_PER_VISIT = 2**26


class RowsAhead:
    """The supplies of the next blocks.

    `draw(group, block number)` returns what is drawn for a block, `gather(words)` the rows of
    random words. A visit brings at least `least` blocks, if they fit in memory.
    """

    def __init__(
        self,
        draw: Callable[[int, int], Drawn],
        gather: Callable[[Any], Any],
        n_groups: int,
        floats_per_block: int,
        least: int = 1,
    ):
        self._draw, self._gather, self._n_groups = draw, gather, n_groups
        # An even number, because pairs of blocks are used together.
        self._most = max(2, _FLOATS_PER_VISIT // max(1, floats_per_block) // 2 * 2)
        self._least = max(1, least)
        self._ready: dict[tuple[int, int], Gathered] = {}
        self._coming: tuple[range, Future[dict[tuple[int, int], Gathered]]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rows-ahead")

    def prepare(self, number: int, stop: int, count: int = 1) -> None:
        """Have `count` blocks ready, from `number` on; begin with those that follow before `stop`.

        Threads may then call `block` for them.
        """
        last = number + count - 1
        if (0, number) in self._ready and (0, last) in self._ready:
            return
        self._ready = {}
        coming_numbers = range(0) if self._coming is None else self._coming[0]
        if self._coming is not None and number in coming_numbers and last in coming_numbers:
            numbers, coming = self._coming
            self._ready = coming.result()
        else:
            wanted = max(stop, number + self._least, last + 1)
            numbers = range(number, min(number + self._most, wanted))
            self._ready = self._visit(numbers)
        self._coming = None
        if stop > numbers.stop:
            wanted = max(stop, numbers.stop + self._least)
            following = range(numbers.stop, min(numbers.stop + self._most, wanted))
            double = bool(jax.config.read("jax_enable_x64"))
            self._coming = following, self._thread.submit(self._visit_in_thread, following, double)

    def block(self, group: int, number: int) -> Gathered:
        if (group, number) not in self._ready:
            self.prepare(number, number + 1)
        return self._ready[group, number]

    def _visit_in_thread(self, numbers: range, double: bool) -> dict[tuple[int, int], Gathered]:
        # Other threads do not see a setting that is local to the first one.
        with jax.enable_x64(double):
            return self._visit(numbers)

    def _visit(self, numbers: range) -> dict[tuple[int, int], Gathered]:
        places = [(group, number) for number in numbers for group in range(self._n_groups)]
        drawn = [self._draw(*place) for place in places]
        words = jax.tree.map(
            lambda *of_blocks: np.stack([np.asarray(of_block) for of_block in of_blocks]),
            *(each.selection for each in drawn),
        )
        batch = self._gather(words)
        return {
            place: Gathered(jax.tree.map(lambda leaf, k=k: leaf[k], batch), drawn[k].noise)
            for k, place in enumerate(places)
        }


_BLOCK_FLOATS, _GPU_BLOCK_FLOATS = 2**21, 2**20  # of one chain
_GATHER_FLOATS = 2**23
# A visit of the shards brings at least one of so many rows: fewer would hardly make it cheaper.
_ROWS_PER_VISITED_ROW = 64
_KEYS_AT_ONCE = 64  # blocks whose keys are derived in one call
_INIT_BLOCK, INIT_KEY = 2**32 - 1, 2**32 - 2  # no step belongs to these block numbers


def block_steps(kernel: AbstractKernel, rows: AbstractRows) -> int:
    """K: the number of steps of a block. More steps take more memory for their rows and noise.

    K is a power of two and depends only on the shapes of one chain.
    """
    floats = max(kernel.model.dim, rows.floats_per_row * max(1, kernel.rows_ahead))
    most = _BLOCK_FLOATS if jax.default_backend() == "cpu" else _GPU_BLOCK_FLOATS
    fitting = max(1, most // floats)
    return min(kernel.longest_block, 1 << (fitting.bit_length() - 1))


class Supply:
    """Makes the supplies of a run, for the keys of the chains of each group.

    All groups have the same number of chains. With `finer`, the supply of chains with the same keys
    that take two steps for each step of these, each step has the noise of two steps of theirs, and
    the rows of the first one.
    """

    def __init__(
        self,
        kernel: AbstractKernel,
        rows: AbstractRows,
        keys: Sequence[Key[Array, " chains"]],
        finer: Supply | None = None,
    ):
        self.kernel, self.rows, self.keys, self.finer = kernel, rows, keys, finer
        self.steps = block_steps(kernel, rows)
        self._host_rows = _reads_on_host(kernel, rows)
        self.stepper = _stepper(kernel, self._host_rows)
        """The kernel that steps with these supplies."""
        self.rows_of_steps: Any = rows if kernel.reads_rows else AbsentRows(None)
        if self._host_rows:
            self.rows_of_steps = AbsentRows(getattr(rows, "view", None))
        """The rows that a step reads besides its supply."""
        self._drawing, self._static = split(self.stepper)
        self._floats_per_step = self.stepper.rows_ahead * rows.floats_per_row
        self._on_cpu = jax.default_backend() == "cpu"
        self._block_keys: dict[int, tuple[int, np.ndarray]] = {}
        """The number of a block and the words of its keys and of those that follow, by group."""
        self._ahead: RowsAhead | None = None
        if self._host_rows:
            self._gather_on_host = kernel.selection.gather_on_host(rows)  # type: ignore[attr-defined]
            if rows.access < RowAccess.TAKE and finer is None:
                n = self.steps * keys[0].shape[0] * len(keys) * self.stepper.rows_ahead
                floats = n * rows.floats_per_row
                least = rows.n_rows // _ROWS_PER_VISITED_ROW // n
                self._ahead = RowsAhead(self._draw, self._gather_on_host, len(keys), floats, least)

    @property
    def in_any_order(self) -> bool:
        """Whether several threads may ask for blocks that NumPy gathers, in any order."""
        return self._host_rows and self._ahead is None and self.finer is None

    def prepare(self, number: int, stop: int) -> None:
        """Prepare the block `number` of all groups; blocks before `stop` are likely to follow.

        Rows that are expensive to reach are read for many blocks in one visit.
        """
        if self.finer is not None and self.finer._ahead is not None:
            self.finer._ahead.prepare(2 * number, 2 * stop, count=2)
        elif self._ahead is not None:
            self._ahead.prepare(number, stop)

    def block(self, group: int, number: int) -> Drawn | Gathered:
        """The supply of one block. The leading axes of every array are steps and chains."""
        if self.finer is not None:
            return self._merged_block(self.finer, group, number)
        if self._ahead is not None:
            return self._ahead.block(group, number)
        return self._gathered(self._draw(group, number))

    def for_start(self, group: int) -> Drawn | Gathered:
        """The supply of one step, to make the first state."""
        drawn = self._draw(group, _INIT_BLOCK)
        if not self._host_rows:
            return self._gathered(drawn)
        drawn = jax.tree.map(lambda leaf: np.asarray(leaf)[:1], drawn)
        if isinstance(self.rows, ShardedRows) and not self.kernel.rows_at_start():
            # The first state takes the shapes of these rows, not their values.
            blank = self.kernel.selection.gather_on_host(self.rows.blank())  # type: ignore[attr-defined]
            return Gathered(blank(drawn.selection), drawn.noise)
        return self._gathered(drawn)

    def _merged_block(self, finer: Supply, group: int, number: int) -> Drawn | Gathered:
        assert isinstance(self.kernel, Kernel), "only compositions are run in pairs"
        numbers = (2 * number, 2 * number + 1)
        if finer._ahead is None:
            halves = tuple(self._draw(group, k) for k in numbers)
            return self._gathered(_merged(self.kernel.dynamics, halves))
        gathered = [finer._ahead.block(group, k) for k in numbers]
        halves = tuple(Drawn(None, half.noise) for half in gathered)
        noise = _merged(self.kernel.dynamics, halves).noise
        return Gathered(jax.tree.map(_first_of_two, *(half.selection for half in gathered)), noise)

    def _draw(self, group: int, number: int) -> Drawn:
        place = number % _KEYS_AT_ONCE
        known = self._block_keys.get(group)
        if known is None or known[0] != number - place:
            numbers = np.uint32(number - place) + np.arange(_KEYS_AT_ONCE, dtype=np.uint32)
            known = number - place, folded_on_host(self.keys[group], numbers)
            self._block_keys[group] = known
        block_keys = key_of(known[1][place])
        return _draw_block(self._drawing, block_keys, static=self._static, steps=self.steps)

    def _gathered(self, drawn: Drawn) -> Drawn | Gathered:
        if self._host_rows:
            words = jax.tree.map(np.asarray, drawn.selection)
            return Gathered(self._gather_on_host(words), drawn.noise)
        leaves = jax.tree.leaves(drawn)
        floats = (leaves[0].shape[1] if leaves else 1) * self.steps * self._floats_per_step
        fits = self._on_cpu and 0 < floats <= _GATHER_FLOATS
        return _gather(self.stepper, drawn, self.rows) if fits else drawn


def _reads_on_host(kernel: AbstractKernel, rows: AbstractRows) -> bool:
    """Whether NumPy can gather all rows of a step before the step."""
    if not isinstance(kernel, Kernel):
        return False
    in_memory = rows.access >= RowAccess.TAKE
    # Steps read a reserve of rows in memory themselves: few of its rows are ever used.
    kinds = WithReplacement if in_memory else WithReplacement | MeasuredSelection
    return isinstance(kernel.selection, kinds) and rows.on_host


def _stepper(kernel: AbstractKernel, host_rows: bool) -> AbstractKernel:
    """The kernel with a selection that does not depend on the number of certain rows."""
    if not isinstance(kernel, Kernel):
        return kernel
    selection = kernel.selection
    if host_rows:
        selection = selection.supplied()  # type: ignore[attr-defined]
    elif isinstance(selection, WithReplacement):
        selection = selection.padded()
    return eqx.tree_at(lambda k: k.selection, kernel, selection)


@quickly_compiled
def _draw_block(
    arrays: list[Array], keys: Key[Array, " chains"], *, static: Static, steps: int
) -> Drawn:
    kernel = static.joined(arrays)
    return jax.vmap(lambda key: kernel.draw(key, steps), out_axes=1)(keys)


@quickly_compiled
def _merged(dynamics: AbstractDynamics, halves: tuple[Drawn, ...]) -> Drawn:
    """One step for every two steps of both halves, with their noise and the rows of the first."""
    drawn = jax.tree.map(lambda *parts: jnp.concatenate(parts), *halves)
    first, second = (jax.tree.map(lambda leaf, k=k: leaf[k::2], drawn) for k in (0, 1))
    noise = jax.vmap(jax.vmap(dynamics.merged_noise))(first.noise, second.noise)
    return Drawn(first.selection, noise)


def _first_of_two(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The rows of every other step of both halves; what all steps share is that of the first."""
    return first if len(first) == 1 else np.concatenate([first[::2], second[::2]])


@quickly_compiled
def _gather(kernel: AbstractKernel, drawn: Drawn, rows: AbstractRows) -> Gathered:
    return kernel.gather(drawn, rows)
