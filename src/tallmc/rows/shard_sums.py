"""Sums over shards, in float64 and in the order of the shards."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..core.compiler import quickly_compiled
from .blocks import AbstractSubset, Blocks
from .passes import reduce_blocks
from .sums import Sum


@dataclasses.dataclass(frozen=True)
class ShardSubset(AbstractSubset):
    """Some blocks of some shards."""

    blocks: tuple[tuple[Blocks, tuple[int, ...]], ...]
    """The division of each shard into blocks, and the numbers of the blocks to read."""

    @property
    def n_rows(self) -> int:
        return sum(
            place.stop - place.start
            for blocks, numbers in self.blocks
            for place in map(blocks.counted, numbers)
        )


def sum_of_shard(common: Any, number: int, blocks: tuple[Blocks, Sequence[int]]) -> tuple[Any, Any]:
    """The sum over some blocks of one shard, in float64, and the kinds of its numbers."""
    shards, block_sum, args = common
    division, numbers = blocks
    array = shards.array(number, whole=len(numbers) == division.count)
    read = division.reader(array)
    total = reduce_blocks(read, division, numbers, block_sum, args, None)
    return total.float64(), jax.tree.map(lambda leaf: leaf.dtype, total.high)


def total_of(parts: Sequence[tuple[Any, Any]]) -> Sum:
    """The sum of what `sum_of_shard` returned for some shards."""
    exact = functools.reduce(
        lambda total, term: jax.tree.map(np.add, total, term), (part for part, _ in parts)
    )
    return Sum(*_high_and_low(exact, parts[0][1]))


def _high_and_low(exact: PyTree[np.ndarray], kinds: PyTree[Any]) -> tuple[Any, Any]:
    """A sum in float64 as a rounded sum and its rounding error."""
    high = jax.tree.map(lambda value, kind: np.asarray(value, kind), exact, kinds)
    low = jax.tree.map(
        lambda value, rounded: np.asarray(value - rounded.astype(np.float64), rounded.dtype),
        exact,
        high,
    )
    return jax.device_put((high, low))


@quickly_compiled
def finished(total: Sum, args: tuple[Any, ...], finish: Callable[..., Any]) -> Any:
    """What is made of a sum, in a program of its own."""
    return finish(total, *args)
