"""The time of each part of a step, and the limit of all cores together.

These explain why some targets are not met.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

import tallmc
from tallmc._engine.run import chain_keys
from tallmc._engine.supply import Supply

from .peers.floor import floor
from .problem import covertype_shaped
from .report import print_table
from .steps import MANY_CHAINS, STEP_SIZE, STEPS, steps_of
from .timing import best_seconds


def main() -> None:
    print_parts()
    print_all_cores()


def print_parts() -> None:
    posterior, rows = covertype_shaped(), []
    for size, chains in ((32, 1), (436, 1), (32, MANY_CHAINS)):
        bound = tallmc.methods.sgld(STEP_SIZE, size).prepare(posterior, None).kernel
        supply = Supply(bound.kernel, bound.rows, [chain_keys(0, chains)])
        seconds = best_seconds(
            {
                "supply": functools.partial(_supplied, supply),
                "whole": steps_of(bound, posterior.init, chains),
            }
        )
        supplied, whole = (seconds[part] / (STEPS * chains) * 1e6 for part in ("supply", "whole"))
        rows.append((size, chains, f"{supplied:.1f}", f"{whole - supplied:.1f}", f"{whole:.1f}"))
    columns = (
        "size",
        "chains",
        "random numbers, and rows from memory",
        "arithmetic, recording, the loop",
        "in all",
    )
    print_table("Where the microseconds of a chain-step of SGLD go", columns, rows)


def print_all_cores() -> None:
    """The loop in C on one core, and on every core at once: a lower bound for many chains."""
    posterior, cores = covertype_shaped(), len(os.sched_getaffinity(0))
    x, y = (np.asarray(column, np.float32) for column in (posterior.data.x, posterior.data.y))
    loops = [floor(x, y, 32, STEPS, STEP_SIZE) for _ in range(cores)]
    if None in loops:
        return
    bound = tallmc.methods.sgld(STEP_SIZE, 32).prepare(posterior, None).kernel
    with ThreadPoolExecutor(cores) as pool:

        def on_every_core() -> None:
            for done in [pool.submit(loop) for loop in loops if loop is not None]:
                done.result()

        calls: dict[str, tuple[Callable[[], Any], int]] = {
            "tallmc, one chain": (steps_of(bound, posterior.init), 1),
            f"tallmc, {MANY_CHAINS} chains": (
                steps_of(bound, posterior.init, MANY_CHAINS),
                MANY_CHAINS,
            ),
            "the floor, one core": (loops[0] or on_every_core, 1),
            f"the floor, {cores} cores": (on_every_core, cores),
        }
        seconds = best_seconds({name: call for name, (call, _) in calls.items()})
    one = seconds["tallmc, one chain"]
    rows = [
        (name, took.each(STEPS * calls[name][1]), f"{took / calls[name][1] / one:.2f}")
        for name, took in seconds.items()
    ]
    print_table(
        "A chain-step on all cores, n = 32",
        ("loop", "µs a chain-step", "of tallmc's single chain"),
        rows,
    )


def _supplied(supply: Supply) -> None:
    """Draw and gather for `STEPS` steps, as a run does, without taking the steps."""
    for number in range(STEPS // supply.steps):
        jax.block_until_ready(supply.block(0, number))
