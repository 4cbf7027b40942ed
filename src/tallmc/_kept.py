"""Where the draws of a run are kept: in memory, or elsewhere (`store/`), block by block as they are completed."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

_BYTES_AT_ONCE = 2**23


class Block(NamedTuple):
    """Draws of all chains that follow each other."""

    positions: Float[np.ndarray, "chains n d"]
    stats: dict[str, np.ndarray]
    """Each (chains, n)."""

    @property
    def n_draws(self) -> int:
        return self.positions.shape[1]

    @property
    def n_bytes(self) -> int:
        return self.positions.nbytes + sum(values.nbytes for values in self.stats.values())


class Snapshot(NamedTuple):
    """All that a run needs to go on from here, beside what never changes."""

    step: int
    rows_before: np.ndarray
    """Rows that each chain has touched, passes apart."""
    rows_touched: int
    """Rows that all chains have touched."""
    seconds: float
    """Spent in steps."""
    leaves: dict[str, np.ndarray]
    """Of the `RunState`, by their path in it."""


class AbstractKept(abc.ABC):
    @property
    @abc.abstractmethod
    def n_draws(self) -> int:
        """Draws of each chain that were added."""

    @abc.abstractmethod
    def add(self, block: Block) -> None:
        """Keep a block."""

    @abc.abstractmethod
    def settle(self, snapshot: Callable[[], Snapshot], *, last: bool = False) -> None:
        """Called when the blocks added belong to the state that `snapshot` takes: a moment to bring both to safety."""

    @abc.abstractmethod
    def whole(self) -> Block:
        """All that is kept, as one."""


class InMemory(AbstractKept):
    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._n_draws = 0

    @property
    def n_draws(self) -> int:
        return self._n_draws

    def add(self, block: Block) -> None:
        if block.n_draws or not self.blocks:
            self.blocks.append(block)
        self._n_draws += block.n_draws

    def forget(self) -> None:
        """Let go of the draws, not of their number."""
        self.blocks.clear()

    def settle(self, snapshot: Callable[[], Snapshot], *, last: bool = False) -> None:
        pass

    def whole(self) -> Block:
        self.blocks = [joined(self.blocks)] if len(self.blocks) > 1 else self.blocks
        return self.blocks[0]


def joined(blocks: list[Block]) -> Block:
    """Blocks end to end."""
    stats = {name: np.concatenate([block.stats[name] for block in blocks], axis=1) for name in blocks[0].stats}
    return Block(np.concatenate([block.positions for block in blocks], axis=1), stats)


def pieces(positions: Float[np.ndarray, "chains draws d"]) -> Iterator[Float[np.ndarray, "chains n d"]]:
    """The draws in order, in float64 and so few at a time that memory does not grow with their number."""
    chains, draws, dim = positions.shape
    at_once = max(1, _BYTES_AT_ONCE // max(8 * chains * dim, 1))
    for first in range(0, draws, at_once):
        yield positions[:, first : first + at_once].astype(np.float64)


def by_parameter(
    of: Callable[[Float[np.ndarray, "chains draws k"]], np.ndarray], positions: Float[np.ndarray, "chains draws d"]
) -> Float[np.ndarray, " d"]:
    """`of` all draws of some parameters at a time, in float64."""
    chains, draws, dim = positions.shape
    at_once = max(1, 16 * _BYTES_AT_ONCE // max(8 * chains * draws, 1))
    found = [of(positions[:, :, first : first + at_once].astype(np.float64)) for first in range(0, dim, at_once)]
    return np.concatenate(found)


class Moments(NamedTuple):
    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]
    extent: Float[np.ndarray, "chains d"]
    """Largest less smallest value, by chain."""


def moments(positions: Float[np.ndarray, "chains draws d"]) -> Moments:
    """Of all draws, a piece at a time (Chan et al., 1983).

    >>> draws = np.random.default_rng(0).normal(size=(2, 1000, 3))
    >>> found = moments(draws)
    >>> bool(np.allclose(found.mean, draws.mean(axis=(0, 1))) and np.allclose(found.sd, draws.std(axis=(0, 1))))
    True
    """
    chains, _, dim = positions.shape
    count, mean, squares = 0, np.zeros(dim), np.zeros(dim)
    low, high = np.full((chains, dim), np.inf), np.full((chains, dim), -np.inf)
    for piece in pieces(positions):
        new = chains * piece.shape[1]
        of_piece = piece.mean(axis=(0, 1))
        change, total = of_piece - mean, count + new
        squares += ((piece - of_piece) ** 2).sum(axis=(0, 1)) + change**2 * count * new / total
        mean, count = mean + change * new / total, total
        low, high = np.minimum(low, piece.min(axis=1)), np.maximum(high, piece.max(axis=1))
    return Moments(mean, np.sqrt(squares / max(count, 1)), high - low)
