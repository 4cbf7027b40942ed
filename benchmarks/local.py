"""Time per step of local SGLD against the number of groups, and against dense SGLD.

`python -m benchmarks.local` prints the table; `--large` adds mixed effects with 10⁶ rows in 10⁵
groups: shared parameters beside the truth.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax.numpy as jnp
import numpy as np

import tallmc
from tallmc._engine.run import Run, chain_keys

_ROWS_PER_GROUP, _SIZE, _CHAINS = 10, 100, 4
_TRUTH = {"beta": [1.0, -1.0], "effect_mean": [1.0], "effect_sd": [0.7], "noise_sd": [0.5]}


def problem(n_groups: int, keep: Any) -> tuple[tallmc.contrib.groups.LocalPosterior, np.ndarray]:
    """Mixed effects with ten rows per group, and the effects that made them."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(n_groups), _ROWS_PER_GROUP)
    x = rng.normal(size=(groups.size, 2)).astype(np.float32)
    effects = 1 + 0.7 * rng.normal(size=n_groups)
    y = x @ [1.0, -1.0] + effects[groups] + 0.5 * rng.normal(size=groups.size)
    return tallmc.contrib.groups.mixed_effects(x, y.astype(np.float32), groups, keep=keep), effects


def seconds_per_step(posterior: Any, method: Any, steps: int) -> float:
    """The best of three calls of the loop, without compilation."""
    prepared = method.prepare(posterior)
    start = jnp.broadcast_to(posterior.init, (_CHAINS, posterior.dim))
    run = Run(prepared.kernel, chain_keys(0, _CHAINS), start, 0, steps, 1)
    run.compile()
    run.run_to(1)
    taken = []
    for number in range(2, 5):
        began = time.perf_counter()
        run.run_to(number)
        taken.append(time.perf_counter() - began)
    assert not any(run.outcomes()), "a chain failed"
    return min(taken) / steps


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true")
    large = parser.parse_args().large
    print(f"{_CHAINS} chains, {_SIZE} rows per step; microseconds per step of all chains")
    print("groups   local    dense")
    for n_groups in (1_000, 10_000, 100_000):
        posterior, _ = problem(n_groups, {"effects": [0]})
        local = tallmc.contrib.groups.local_sgld(1e-3, _SIZE, preconditioned=True)
        dense = tallmc.methods.sgld(1e-9, _SIZE)
        times = (
            seconds_per_step(posterior, local, 4096),
            seconds_per_step(posterior.keeping("all"), dense, 64),
        )
        print(f"{n_groups:7,} {times[0] * 1e6:7.0f} {times[1] * 1e6:8.0f}", flush=True)
    if large:
        recover()


def recover() -> None:
    """Mixed effects with 10⁶ rows in 10⁵ groups."""
    posterior, effects = problem(100_000, {"effects": list(range(10))})
    method = tallmc.contrib.groups.local_sgld(0.02, 1000, preconditioned=True)
    began = time.perf_counter()
    draws = tallmc.sample(posterior, method, chains=4, n_draws=200, thin=100, burn_in=20_000)
    print(f"10⁶ rows, 10⁵ groups: {time.perf_counter() - began:.0f} s")
    for name, truth in _TRUTH.items():
        found = draws.values[name].reshape(-1, len(truth))
        print(f"{name:12} truth {truth} mean {found.mean(axis=0)} sd {found.std(axis=0)}")
    moments = draws.group_moments["effects"]
    scaled = (moments.mean[:, 0] - effects) / moments.sd[:, 0]
    print(f"effects: rms of (mean − truth)/sd {np.sqrt(np.mean(scaled**2)):.3f}; exact: 1")
    exact = np.sqrt(1 / (1 / 0.7**2 + _ROWS_PER_GROUP / 0.5**2))
    print(f"effects: mean sd {moments.sd.mean():.4f}; given φ: {exact:.4f}")


if __name__ == "__main__":
    main()
