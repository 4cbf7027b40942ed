"""Passes driven by the host: one call of a compiled program per block of rows.

All blocks have the same shape. The programs therefore do not depend on the number of rows, and a
cache of compiled programs serves every data set with the same columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from ..core.compiler import QUICKLY
from ..core.pytrees import Static, split
from .blocks import Blocks
from .sums import Sum

ReadBlock = Callable[[int], PyTree]
"""Returns the rows of a block, by its number."""


def reduce_blocks(
    read: ReadBlock,
    blocks: Blocks,
    numbers: Sequence[int],
    block_sum: Callable[..., PyTree[Array]],
    args: tuple[Any, ...],
    finish: Callable[..., Any] | None,
) -> Any:
    """Σ over these blocks of `block_sum(rows, counted, *args)`, in compensated arithmetic.

    `counted` is 1 for the rows that count and 0 for the others. **Returns** the `Sum`, or
    `finish(sum, *args)`.
    """
    arrays, others = split(args)
    total, result = None, None
    for k, number in enumerate(numbers):
        rows, counted = read(number), _counted(blocks, number)
        if total is None:
            total = _empty(rows, counted, arrays, others, block_sum)
        is_last = np.bool_(k == len(numbers) - 1)
        total, result = _add_block(total, rows, counted, arrays, is_last, others, block_sum, finish)
    return total if finish is None else result


def map_blocks(
    read: ReadBlock, blocks: Blocks, per_row: Callable[..., Array], args: tuple[Any, ...]
) -> Array:
    """`per_row(rows, *args)` of all rows."""
    return jax.device_put(np.concatenate(list(values_by_block(read, blocks, per_row, args))))


def values_by_block(
    read: ReadBlock, blocks: Blocks, per_row: Callable[..., Array], args: tuple[Any, ...]
) -> Iterator[np.ndarray]:
    """`per_row(rows, *args)`, block after block, each row once and in order."""
    arrays, others = split(args)
    for number in range(blocks.count):
        values = _values(read(number), arrays, others, per_row)
        yield np.asarray(values)[blocks.counted(number)]


@functools.lru_cache(maxsize=256)
def _ones(size: int, begin: int, end: int) -> np.ndarray:
    ones = np.zeros(size, bool)
    ones[begin:end] = True
    return ones


def _counted(blocks: Blocks, number: int) -> np.ndarray:
    place = blocks.counted(number)
    return _ones(blocks.size, place.start, place.stop)


def _empty(
    rows: PyTree, counted: np.ndarray, arrays: list[Array], others: Static, block_sum: Any
) -> Sum:
    """The empty sum, on the host."""
    shapes = _term.eval_shape(rows, counted, arrays, others, block_sum)
    zero = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), shapes)
    return Sum(zero, zero)


@functools.partial(jax.jit, static_argnames=("others", "block_sum"))
def _term(
    rows: PyTree, counted: Array, arrays: list[Array], others: Static, block_sum: Any
) -> PyTree[Array]:
    return block_sum(rows, counted, *others.joined(arrays))


@functools.partial(
    jax.jit, static_argnames=("others", "block_sum", "finish"), compiler_options=QUICKLY
)
def _add_block(
    total: Sum,
    rows: PyTree,
    counted: Array,
    arrays: list[Array],
    is_last: Array,
    others: Static,
    block_sum: Any,
    finish: Any,
) -> tuple[Sum, Any]:
    """The sum with one more block and, after the last one, its result."""
    args = others.joined(arrays)
    total = total.plus(block_sum(rows, counted, *args))
    if finish is None:
        return total, None

    def no_result(total: Sum) -> Any:
        shapes = jax.eval_shape(lambda total: finish(total, *args), total)
        return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

    return total, lax.cond(is_last, lambda total: finish(total, *args), no_result, total)


@functools.partial(jax.jit, static_argnames=("others", "per_row"), compiler_options=QUICKLY)
def _values(rows: PyTree, arrays: list[Array], others: Static, per_row: Any) -> Array:
    return per_row(rows, *others.joined(arrays))
