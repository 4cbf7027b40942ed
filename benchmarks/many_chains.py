"""The cost per chain-step of a run of few and of many chains, with one row per step.

The time includes the host: how it divides a run into calls matters most with many chains.
"""

from __future__ import annotations

import time

import jax.numpy as jnp
import numpy as np

import tallmc
from tallmc._engine.run import Run, chain_keys
from tallmc._engine.supply import block_steps

from .report import print_table

CHAINS = (64, 1_000, 10_000)
CHAIN_STEPS = 30_000_000
SIZE, DIM, N_ROWS = 1, 2, 10_000


def seconds_per_chain_step(chains: int, chain_steps: int = CHAIN_STEPS) -> float:
    """Time per chain and step, after as many steps in which the length of calls is found."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N_ROWS, DIM))
    y = rng.random(N_ROWS) < 1 / (1 + np.exp(-x.sum(axis=1)))
    posterior = tallmc.models.logistic_regression(x, y, prior_variance=10.0)
    bound = tallmc.methods.sgld(step_size=1e-4, batch_size=SIZE).prepare(posterior).kernel
    start = jnp.zeros((chains, DIM), posterior.dtype)
    block = block_steps(bound.kernel, bound.rows)
    steps = block * round(chain_steps / chains / block)
    run = Run(bound, chain_keys(0, chains), start, burn_in=0, thin=steps, n_draws=2)
    run.run_to(1)
    began = time.perf_counter()
    run.run_to(2)
    return (time.perf_counter() - began) / (steps * chains)


def main() -> None:
    seconds = {chains: seconds_per_chain_step(chains) for chains in CHAINS}
    rows = [
        (f"{chains:,}", f"{took * 1e9:.1f}", f"{took / seconds[CHAINS[0]]:.2f}", "≤ 1.0")
        for chains, took in seconds.items()
    ]
    print_table(
        f"A chain-step of SGLD with many chains, n = {SIZE}, d = {DIM}, as `sample` runs it",
        ("chains", "ns a chain-step", f"of {CHAINS[0]} chains", "target"),
        rows,
    )
