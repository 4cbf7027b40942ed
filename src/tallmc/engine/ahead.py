"""Rows that are not in memory: read for many blocks of steps in one visit, and ahead of the steps.

A visit costs about as much as a pass over all rows, however few rows it brings. It therefore brings
the rows of as many blocks as will be needed and fit in memory, and while the device runs these
blocks, a thread makes the next visit. How many blocks a visit brings changes no draw, because the
random words of a draw depend only on the seed, the chain and the step.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from .kernel import Drawn, Gathered

_FLOATS_PER_VISIT = 2**26


class RowsAhead:
    """The supplies of the next blocks.

    **Arguments:**

    - `draw`: returns what is drawn for a block, by the numbers of the group and of the block.
    - `gather`: returns the rows of random words.
    - `n_groups`: the number of groups of chains.
    - `floats_per_block`: numbers in the rows of one block of all groups.
    - `least`: blocks that a visit brings at least, if they fit in memory.
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
        """The supply of a block that has been prepared."""
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
