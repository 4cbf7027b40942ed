"""Where the draws of a run are kept.

A sink receives draws block by block. `MemorySink` keeps them in memory. The sink in `store/` writes
them to disk.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float


class DrawBlock(NamedTuple):
    """Consecutive draws of all chains."""

    positions: Float[np.ndarray, "chains n d"]
    stats: dict[str, np.ndarray]
    """Each has shape (chains, n, ...)."""
    values: dict[str, np.ndarray] | None = None
    """The quantities of a store, (chains, n, ...) each; None if they are parts of `positions`."""

    @property
    def n_draws(self) -> int:
        return self.positions.shape[1]

    @property
    def n_bytes(self) -> int:
        return self.positions.nbytes + sum(values.nbytes for values in self.stats.values())


class Snapshot(NamedTuple):
    """The changing part of a run's state, sufficient to continue the run."""

    step: int
    rows_before: np.ndarray
    """Rows touched per chain, without passes over all rows."""
    rows_touched: int
    """Rows touched by all chains."""
    seconds: float
    """Time spent in steps."""
    leaves: dict[str, np.ndarray]
    """Leaves of the `RunState`, by path."""


class Conclusion(NamedTuple):
    """How a run ended."""

    completed: list[bool]
    """For each chain, whether it ran without failing."""
    finished: bool
    """Whether the run reached its goal."""
    facts: dict[str, Any]
    """Further facts to store, as JSON."""


class AbstractDrawSink(abc.ABC):
    """Receives the draws of a run."""

    @property
    @abc.abstractmethod
    def n_draws(self) -> int:
        """Draws added, per chain."""

    @abc.abstractmethod
    def add(self, block: DrawBlock) -> None:
        """Add a block."""

    @abc.abstractmethod
    def settle(self, snapshot: Callable[[], Snapshot], *, last: bool = False) -> None:
        """Save blocks and state if a save is due; `last` saves them at once and waits.

        Called when the blocks added so far match the state that `snapshot` returns.
        """

    @abc.abstractmethod
    def conclude(self, conclusion: Conclusion) -> list[str]:
        """Store how the run ended; return messages about failures to do so."""

    @abc.abstractmethod
    def whole(self) -> DrawBlock:
        """All draws as one block."""


class MemorySink(AbstractDrawSink):
    """Keeps draws in memory."""

    def __init__(self) -> None:
        self.blocks: list[DrawBlock] = []
        self._n_draws = 0

    @property
    def n_draws(self) -> int:
        return self._n_draws

    def add(self, block: DrawBlock) -> None:
        if block.n_draws or not self.blocks:
            self.blocks.append(block)
        self._n_draws += block.n_draws

    def forget(self) -> None:
        """Drop the draws, but keep counting them."""
        self.blocks.clear()

    def settle(self, snapshot: Callable[[], Snapshot], *, last: bool = False) -> None:
        pass

    def conclude(self, conclusion: Conclusion) -> list[str]:
        return []

    def whole(self) -> DrawBlock:
        self.blocks = [joined(self.blocks)] if len(self.blocks) > 1 else self.blocks
        return self.blocks[0]


def joined(blocks: list[DrawBlock]) -> DrawBlock:
    """Concatenate blocks along the draws."""
    stats = {
        name: np.concatenate([block.stats[name] for block in blocks], axis=1)
        for name in blocks[0].stats
    }
    return DrawBlock(np.concatenate([block.positions for block in blocks], axis=1), stats)
