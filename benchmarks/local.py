"""Time per step of local SGLD against the number of groups, and against dense SGLD.

`python -m benchmarks.local` prints the table.
"""

from __future__ import annotations

import time
from typing import Any

import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np

import tallmc
from tallmc._engine.run import Run, chain_keys
from tallmc.contrib.groups import Local, LocalPosterior, NormalGroups

_ROWS_PER_GROUP, _SIZE, _CHAINS = 10, 100, 4


def problem(n_groups: int, keep: Any) -> LocalPosterior:
    """A regression whose intercepts differ between groups of ten rows, with unknown sds."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(n_groups), _ROWS_PER_GROUP)
    x = rng.normal(size=(groups.size, 2)).astype(np.float32)
    effects = 1 + 0.7 * rng.normal(size=n_groups)
    y = x @ [1.0, -1.0] + effects[groups] + 0.5 * rng.normal(size=groups.size)

    def log_prior(shared: Any) -> Any:
        sds = (shared["effect_sd"] / 5) ** 2 + (shared["noise_sd"] / 5) ** 2
        means = jnp.sum(shared["beta"] ** 2) + shared["effect_mean"] ** 2
        return -0.5 * (sds + means / 100)

    def effect_law(shared: Any) -> tuple[Any, Any]:
        return shared["effect_mean"], shared["effect_sd"]

    return LocalPosterior(
        lambda shared, local, row: stats.norm.logpdf(
            row["y"], jnp.dot(row["x"], shared["beta"]) + local["effects"], shared["noise_sd"]
        ),
        log_prior,
        {"x": x, "y": y.astype(np.float32)},
        {"beta": jnp.zeros(2), "effect_mean": 0.0, "effect_sd": 1.0, "noise_sd": 1.0},
        {"effects": Local(groups, jnp.zeros(n_groups), NormalGroups(effect_law))},
        transforms={"effect_sd": "positive", "noise_sd": "positive"},
        keep=keep,
    )


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
    """Print the table."""
    print(f"{_CHAINS} chains, {_SIZE} rows per step; microseconds per step of all chains")
    print("groups   local    dense")
    for n_groups in (1_000, 10_000, 100_000):
        posterior = problem(n_groups, {"effects": [0]})
        local = tallmc.contrib.groups.local_sgld(1e-3, _SIZE, preconditioned=True)
        dense = tallmc.methods.sgld(1e-9, _SIZE)
        times = (
            seconds_per_step(posterior, local, 4096),
            seconds_per_step(posterior.keeping("all"), dense, 64),
        )
        print(f"{n_groups:7,} {times[0] * 1e6:7.0f} {times[1] * 1e6:8.0f}", flush=True)


if __name__ == "__main__":
    main()
