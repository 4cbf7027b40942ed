"""Passes driven by the host: one call of a compiled program per block of rows.

All blocks have the same shape. The programs therefore do not depend on the number of rows, and a
cache of compiled programs serves every data set with the same columns.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from .._core.programs import Static, quickly_compiled, split
from .._core.supervision import in_threads

# Blocks of rows in a pass. All blocks of a pass have the same shape.
#
# The numbers of a block fit in cache on a CPU, and its plain sum is accurate. The last block begins
# early enough to be whole: it repeats some rows of the block before it, which are not counted
# again. The size of a block is a power of two. It depends on the number of rows only if these are
# few, so programs compiled for one data set serve others as well.
#
# In memory, threads share the blocks of a pass. In a row store a thread has a shard, and its blocks
# are larger: the program loops over their pieces.

_BLOCK_FLOATS, _BLOCK_ROWS = 2**19, 2**13
_GPU_BLOCK_FLOATS, _GPU_BLOCK_ROWS = 2**26, 2**20

_CALL_ROWS, _PIECE_FLOATS, _PIECE_ROWS = 2**16, 2**16, 2**8


def block_rows(width: int) -> int:
    """Rows per block, a power of two, for a computation that needs `width` floats per row."""
    on_cpu = jax.default_backend() == "cpu"
    floats = _BLOCK_FLOATS if on_cpu else _GPU_BLOCK_FLOATS
    most = _BLOCK_ROWS if on_cpu else _GPU_BLOCK_ROWS
    return _power_of_two(min(most, floats // max(1, width)))


def piece_rows(width: int) -> int:
    """Rows of a piece of a block, a power of two: what is computed of them fits in a core's cache.

    With 20 columns, derivatives take 90 ns per row in pieces of 2,048 rows and 131 without them.
    Products of matrices need some rows, however wide these are.
    """
    most = block_rows(width)
    if jax.default_backend() != "cpu":
        return most
    return min(most, _power_of_two(max(_PIECE_FLOATS // max(1, width), _PIECE_ROWS)))


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

    @classmethod
    def of_shard(cls, n_rows: int, largest: int, width: int) -> Blocks:
        """The blocks of a shard, of the same size for all shards, the `largest` and the last.

        A program takes each in pieces. A call for every piece would take as long as its arithmetic.
        """
        most = _CALL_ROWS if jax.default_backend() == "cpu" else block_rows(width)
        return cls(n_rows, min(most, _power_of_two(largest)))

    @property
    def count(self) -> int:
        return -(-self.n_rows // self.size)

    def start(self, number: int) -> int:
        return max(0, min(number * self.size, self.n_rows - self.size))

    def lines(self, number: int) -> slice:
        """The lines of an array that are read for a block, by its number."""
        first = self.start(number)
        return slice(first, first + self.size)

    def reader(self, array: np.ndarray) -> Callable[[int], np.ndarray]:
        """A function that returns the lines of a block of this array, by its number."""

        if self.n_rows < self.size:  # the last line is repeated, and not counted again
            array = np.pad(array, ((0, self.size - self.n_rows), (0, 0)), "edge")
        return lambda number: array[self.lines(number)]

    def counted(self, number: int) -> slice:
        """The rows of the block, counted from its first one, that belong to no other block."""
        first = number * self.size
        begin = first - self.start(number)
        return slice(begin, begin + min(self.size, self.n_rows - first))


@dataclasses.dataclass(frozen=True)
class Subset:
    """Some blocks, for a pass that does not need all rows."""

    blocks: tuple[tuple[Blocks, tuple[int, ...]], ...]
    """The division of all rows, or of each shard, into blocks, and the numbers of those to read."""

    def divided(self, count: int) -> list[Subset]:
        """The blocks in `count` parts, for threads; empty parts are left out.

        Several shards have threads of their own, and would be read from the disk for each part.
        """
        if len(self.blocks) > 1:
            return [self]
        [(of, numbers)] = self.blocks
        cut = [Subset(((of, numbers[k::count]),)) for k in range(count)]
        return [part for part in cut if part.n_rows]

    @property
    def n_rows(self) -> int:
        return sum(
            place.stop - place.start
            for blocks, numbers in self.blocks
            for place in map(blocks.counted, numbers)
        )


# Compensated sums: a sum carries its rounding error along (Knuth's two-sum).
#
# In float32, the error of a sum over N rows is then the error of one block of rows, not of N rows.
# Only a pass inside a compiled program adds them up. Elsewhere NumPy does, in float64.


class Sum(eqx.Module):
    """A sum as `high + low`: `high` is the rounded sum, `low` the rounding error."""

    high: PyTree[Array]
    low: PyTree[Array]

    @classmethod
    def zero(cls, shapes: PyTree[jax.ShapeDtypeStruct]) -> Sum:
        """The empty sum of terms with these shapes."""
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return cls(zero, zero)

    def plus(self, term: PyTree[Array]) -> Sum:
        high = jax.tree.map(jnp.add, self.high, term)
        errors = jax.tree.map(_rounding_error, self.high, high, term)
        return Sum(high, jax.tree.map(jnp.add, self.low, errors))

    def rounded(self) -> Any:
        """The sum in the precision of its terms."""
        return jax.tree.map(jnp.add, self.high, self.low)

    def float64(self) -> Any:
        """The sum in float64 on the host, at any precision of the device."""
        high, low = jax.tree.map(lambda part: np.asarray(part, np.float64), (self.high, self.low))
        return jax.tree.map(np.add, high, low)


def split_sum(values: Float[Array, "n ..."]) -> tuple[Float[Array, ...], Float[Array, ...]]:
    """Σ values over the first axis as (high, low): the rounded sum and its rounding error."""
    width = 1 << max(values.shape[0] - 1, 0).bit_length()
    padding = [(0, width - values.shape[0]), *[(0, 0)] * (values.ndim - 1)]
    high, low = jnp.pad(values, padding), jnp.zeros(values.shape[1:], values.dtype)
    while high.shape[0] > 1:
        first, second = jnp.split(high, 2)
        high = first + second
        low = low + jnp.sum(_rounding_error(first, high, second), axis=0)
    return high[0], low


def _rounding_error(old: Array, new: Array, added: Array) -> Array:
    """Old + added − new, exactly, where `new` is the rounded sum (Knuth)."""
    rounded = new - old
    return (old - (new - rounded)) + (added - rounded)


@dataclasses.dataclass(frozen=True)
class InPieces:
    """The `Sum` over a block of rows, or values of them, in a loop over pieces of `size` rows."""

    function: Callable[..., Any]
    size: int
    sums: bool

    def __call__(self, rows: PyTree[Array], *args: Any) -> Any:
        n_rows = jax.tree.leaves(rows)[0].shape[0]
        if n_rows <= self.size:
            return self.function(rows, *args)

        def cut(part: Array) -> Array:
            return part.reshape(n_rows // self.size, self.size, *part.shape[1:])

        if not self.sums:
            values = lax.map(lambda piece: self.function(piece, *args), jax.tree.map(cut, rows))
            return jax.tree.map(lambda of: of.reshape(n_rows, *of.shape[2:]), values)
        others, pieces = args[1:], jax.tree.map(cut, (rows, args[0]))
        first = jax.tree.map(lambda part: part[0], pieces)
        zero = Sum.zero(jax.eval_shape(lambda: self.function(*first, *others)))
        total, _ = lax.scan(lambda s, of: (s.plus(self.function(*of, *others)), None), zero, pieces)
        return total


ReadBlock = Callable[[int], PyTree]  # returns the rows of a block, by its number


def sum_of_blocks(
    read: ReadBlock,
    blocks: Blocks,
    numbers: Sequence[int],
    block_sum: Callable[..., PyTree[Array]],
    args: tuple[Any, ...],
) -> tuple[Any, Any]:
    """`AbstractRows.reduce` over these blocks of one array or shard: the sum, and its dtypes.

    NumPy adds up the terms in float64, each while the device has the next one to do.
    """
    arrays, others = split(args)
    terms = (
        _of_block((read(number), _mask(blocks, number)), arrays, others, block_sum)
        for number in numbers
    )
    total, waiting = None, next(terms)
    of_term = waiting.high if isinstance(waiting, Sum) else waiting
    kinds = jax.tree.map(lambda leaf: leaf.dtype, of_term)
    for term in itertools.chain(terms, (None,)):
        if isinstance(waiting, Sum):
            on_host = waiting.float64()
        else:
            on_host = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), waiting)
        total = on_host if total is None else _added(total, on_host)
        waiting = term
    return total, kinds


def total_of(parts: Sequence[tuple[Any, Any]]) -> Sum:
    """The sum of what `sum_of_blocks` returned for some arrays or shards."""
    terms, kinds = [term for term, _ in parts], parts[0][1]
    exact = functools.reduce(_added, terms)
    with np.errstate(all="ignore"):
        high = jax.tree.map(np.asarray, exact, kinds)
        low = jax.tree.map(lambda e, h: np.asarray(e - h.astype(np.float64), h.dtype), exact, high)
    return Sum(*jax.device_put((high, low)))


@np.errstate(all="ignore")
def _added(total: PyTree[np.ndarray], term: PyTree[np.ndarray]) -> PyTree[np.ndarray]:
    # Where a search looks too far away, potentials are infinite, and quietly so as on the device.
    return jax.tree.map(np.add, total, term)


@quickly_compiled
def finished(total: Sum, args: tuple[Any, ...], finish: Callable[..., Any]) -> Any:
    """What is made of a sum, in a program of its own."""
    return finish(total, *args)


def map_blocks(
    read: ReadBlock, blocks: Blocks, per_row: Callable[..., Any], args: tuple[Any, ...]
) -> PyTree[Array]:
    def values(number: int) -> PyTree[np.ndarray]:
        return _counted(values_of(read(number), per_row, args), blocks, number)

    return jax.device_put(joined(in_threads(values, range(blocks.count))))


def values_by_block(
    read: ReadBlock, blocks: Blocks, per_row: Callable[..., Any], args: tuple[Any, ...]
) -> Iterator[PyTree[np.ndarray]]:
    """`per_row(rows, *args)`, block after block, each row once and in order."""
    for number in range(blocks.count):
        yield _counted(values_of(read(number), per_row, args), blocks, number)


def joined(parts: Sequence[PyTree[np.ndarray]]) -> PyTree[np.ndarray]:
    """The values of consecutive rows, given in parts."""
    return jax.tree.map(lambda *of: np.concatenate(of), *parts)


def _counted(values: PyTree[Array], blocks: Blocks, number: int) -> PyTree[np.ndarray]:
    return jax.tree.map(lambda of: np.asarray(of)[blocks.counted(number)], values)


def values_of(rows: PyTree, per_row: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """`per_row(rows, *args)` of one block, by the program of a pass."""
    arrays, others = split(args)
    return _of_block((rows,), arrays, others, per_row)


def _mask(blocks: Blocks, number: int) -> np.ndarray:
    place = blocks.counted(number)
    return _ones(blocks.size, place.start, place.stop)


@functools.lru_cache(maxsize=256)
def _ones(size: int, begin: int, end: int) -> np.ndarray:
    ones = np.zeros(size, bool)
    ones[begin:end] = True
    return ones


@quickly_compiled
def _of_block(block: tuple[Any, ...], arrays: list[Array], others: Static, function: Any) -> Any:
    return function(*block, *others.joined(arrays))
