"""Timing things against each other: interleaved, best of several, compiled beforehand."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def best_seconds(calls: Mapping[str, Callable[[], Any]], rounds: int = 5) -> dict[str, float]:
    """The fastest of several calls of each, taken in turns so that a slow moment of the machine hits all alike."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        jax.block_until_ready(call())
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            jax.block_until_ready(call())
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def print_table(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    print(f"\n## {title}\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(str(value) for value in row)} |", flush=True)
