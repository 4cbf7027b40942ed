"""Blocks of rows in a pass. All blocks of a pass have the same shape.

The numbers of a block fit in cache on a CPU, and its plain sum is accurate. The last block begins
early enough to be whole: it repeats some rows of the block before it, which are not counted again.
The size of a block is a power of two. It depends on the number of rows only if these are few, so
programs compiled for one data set serve others as well.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable

import jax
import numpy as np

_BLOCK_FLOATS, _BLOCK_ROWS = 2**19, 2**13
_GPU_BLOCK_FLOATS, _GPU_BLOCK_ROWS = 2**26, 2**20


def block_rows(width: int) -> int:
    """Rows per block, a power of two, for a computation that needs `width` floats per row."""
    floats, most = (
        (_BLOCK_FLOATS, _BLOCK_ROWS)
        if jax.default_backend() == "cpu"
        else (_GPU_BLOCK_FLOATS, _GPU_BLOCK_ROWS)
    )
    return _power_of_two(min(most, floats // max(1, width)))


def _power_of_two(number: int) -> int:
    """The largest power of two that is not larger; at least 1."""
    return 1 << max(number.bit_length() - 1, 0)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The division of `n_rows` rows into blocks of `size` rows."""

    n_rows: int
    size: int

    @classmethod
    def of(cls, n_rows: int, width: int) -> Blocks:
        """The blocks of a pass that needs `width` floats per row."""
        return cls(n_rows, min(block_rows(width), _power_of_two(n_rows)))

    @property
    def count(self) -> int:
        """Number of blocks."""
        return -(-self.n_rows // self.size)

    def start(self, number: int) -> int:
        """The first row of a block."""
        return min(number * self.size, self.n_rows - self.size)

    def reader(self, array: np.ndarray) -> Callable[[int], np.ndarray]:
        """A function that returns the lines of a block of this array, by its number."""

        def read(number: int) -> np.ndarray:
            first = self.start(number)
            return array[first : first + self.size]

        return read

    def counted(self, number: int) -> slice:
        """The rows of the block, counted from its first one, that belong to no other block."""
        first = number * self.size
        begin = first - self.start(number)
        return slice(begin, begin + min(self.size, self.n_rows - first))


class AbstractSubset(abc.ABC):
    """Some of the rows, for a pass that does not need all of them."""

    @property
    @abc.abstractmethod
    def n_rows(self) -> int:
        """Rows in this subset."""


@dataclasses.dataclass(frozen=True)
class BlockSubset(AbstractSubset):
    """Some blocks of a pass, by number, chosen at random; or all of them."""

    blocks: Blocks
    numbers: tuple[int, ...]

    @classmethod
    def random(cls, blocks: Blocks, share: float) -> BlockSubset:
        """Random whole blocks with about this `share` of the rows; with `share = 1`, all rows."""
        if share >= 1:
            return cls(blocks, tuple(range(blocks.count)))
        whole = max(1, blocks.n_rows // blocks.size)
        order = np.random.default_rng(0).permutation(whole)
        return cls(blocks, tuple(order[: max(1, round(share * whole))].tolist()))

    @property
    def n_rows(self) -> int:
        places = (self.blocks.counted(number) for number in self.numbers)
        return sum(place.stop - place.start for place in places)
