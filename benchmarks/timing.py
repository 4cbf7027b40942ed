"""Compare the times of several calls: compiled beforehand, interleaved, best of several rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

Name = TypeVar("Name")


class Seconds(float):
    """Seconds of the fastest of several calls."""

    spread: float
    """How much slower the median call was, as a fraction of the fastest."""

    @classmethod
    def of(cls, taken: list[float]) -> Seconds:
        best = cls(min(taken))
        best.spread = statistics.median(taken) / best - 1
        return best

    def each(self, count: int) -> str:
        """Microseconds per step, for a call that took `count` steps."""
        return f"{self / count * 1e6:.1f} (+{self.spread:.0%})"


def best_seconds(calls: Mapping[Name, Callable[[], Any]], rounds: int = 5) -> dict[Name, Seconds]:
    """The fastest of `rounds` calls of each.

    Calls alternate, so that a slow period of the machine affects all of them.
    """
    taken: dict[Name, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        jax.block_until_ready(call())
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            jax.block_until_ready(call())
            taken[name].append(time.perf_counter() - began)
    return {name: Seconds.of(of_name) for name, of_name in taken.items()}
