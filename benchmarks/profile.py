"""Where a step's time goes, and how far all cores together could go: what stands in the way of targets that are not met."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import tallmc
from tallmc._kernel import AbstractKernel, Supply
from tallmc._loop import block_steps

from .peers.floor import floor
from .problem import covertype_shaped
from .report import print_table
from .steps import MANY_CHAINS, STEP_SIZE, STEPS, steps_of
from .timing import best_seconds

_MOST_GATHERED = 2**18  # rows at once


def main() -> None:
    print_parts()
    print_all_cores()


def print_parts() -> None:
    posterior, rows = covertype_shaped(), []
    for size, chains in ((32, 1), (436, 1), (32, MANY_CHAINS)):
        kernel = tallmc.sgld(STEP_SIZE, size).prepare(posterior, None).kernel
        block = min(block_steps(kernel), _MOST_GATHERED // (size * chains))
        keys = jax.random.split(jax.random.key(0), chains)
        supply = _random_numbers(kernel, keys, block)
        seconds = best_seconds(
            {
                "random": functools.partial(_random_numbers, kernel, keys, block),
                "gather": functools.partial(_gather, kernel, supply),
                "whole": steps_of(kernel, posterior.init, chains),
            }
        )
        random, gather = (seconds[part] / (block * chains) * 1e6 for part in ("random", "gather"))
        whole = seconds["whole"] / (STEPS * chains) * 1e6
        rest = whole - random - gather
        rows.append((size, chains, f"{random:.1f}", f"{gather:.1f}", f"{rest:.1f}", f"{whole:.1f}"))
    columns = ("size", "chains", "random numbers", "rows from memory", "arithmetic and the rest", "in all")
    print_table("Where the microseconds of a chain-step of SGLD go", columns, rows)


def print_all_cores() -> None:
    """The loop in C on one core, and a copy of it on every core at once: many chains cannot be cheaper than that."""
    posterior, cores = covertype_shaped(), len(os.sched_getaffinity(0))
    x, y = (np.asarray(column, np.float32) for column in posterior.data)
    loops = [floor(x, y, 32, STEPS, STEP_SIZE) for _ in range(cores)]
    if None in loops:
        return
    kernel = tallmc.sgld(STEP_SIZE, 32).prepare(posterior, None).kernel
    with ThreadPoolExecutor(cores) as pool:

        def on_every_core() -> None:
            for done in [pool.submit(loop) for loop in loops if loop is not None]:
                done.result()

        calls: dict[str, tuple[Callable[[], Any], int]] = {
            "tallmc, one chain": (steps_of(kernel, posterior.init), 1),
            f"tallmc, {MANY_CHAINS} chains": (steps_of(kernel, posterior.init, MANY_CHAINS), MANY_CHAINS),
            "the floor, one core": (loops[0] or on_every_core, 1),
            f"the floor, {cores} cores": (on_every_core, cores),
        }
        seconds = best_seconds({name: call for name, (call, _) in calls.items()})
    one = seconds["tallmc, one chain"]
    rows = [(name, took.each(STEPS * calls[name][1]), f"{took / calls[name][1] / one:.2f}") for name, took in seconds.items()]
    print_table("A chain-step on all cores, n = 32", ("loop", "µs a chain-step", "of tallmc's single chain"), rows)


@eqx.filter_jit
def _random_numbers(kernel: AbstractKernel, keys: jax.Array, steps: int) -> Supply:
    return jax.vmap(lambda key: kernel.supply(key, steps), out_axes=1)(keys)


@eqx.filter_jit
def _gather(kernel: AbstractKernel, supply: Supply) -> Supply:
    def flat(leaf: jax.Array) -> jax.Array:
        return jnp.reshape(leaf, (leaf.shape[0], -1, *leaf.shape[3:]))

    return kernel.gather(jax.tree.map(flat, supply))
