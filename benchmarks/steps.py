"""What a step costs, against the same step written with BlackJAX inside `lax.scan`, and against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import tallmc
from tallmc._kernel import AbstractKernel
from tallmc._loop import advance, start_run

from .problem import N_ROWS, covertype_shaped
from .timing import best_seconds, print_table

STEP_SIZE, STEPS = 1e-7, 2048


def ours(method: tallmc.Method, anchor: tallmc.Anchor, chains: int = 1) -> Callable[[], Any]:
    kernel = method.prepare(covertype_shaped(), anchor if method.needs else None).kernel
    return steps_of(kernel, anchor.position, chains)


def steps_of(kernel: AbstractKernel, start: Any, chains: int = 1) -> Callable[[], Any]:
    """So many steps of a prepared method, as the driver takes them. The state is not kept from call to call."""
    keys = jax.random.split(jax.random.key(0), chains)
    state = start_run(kernel, keys, jnp.broadcast_to(start, (chains, *start.shape)))
    zero, steps, one = jnp.int32(0), jnp.int32(STEPS), jnp.int32(1)
    return lambda: advance(kernel, keys, state, zero, steps, zero, one, STEPS)[1].positions


def blackjax_sgld(size: int, anchor: tallmc.Anchor) -> Callable[[], Any]:
    """As its documentation does: a gradient of the minibatch log density, a key a step."""
    posterior = covertype_shaped()

    def log_prior(theta: Any) -> Any:
        return -0.5 * jnp.sum(theta**2) / 10.0

    def log_likelihood(theta: Any, row: Any) -> Any:
        z = row.x @ theta
        return row.y * z - jnp.logaddexp(0.0, z)

    def run(data: Any, start: Any, key: Any) -> Any:
        gradient = blackjax.sgmcmc.gradients.grad_estimator(log_prior, log_likelihood, N_ROWS)
        sgld = blackjax.sgld(gradient)

        def step(theta: Any, key: Any) -> Any:
            index_key, step_key = jax.random.split(key)
            indices = jax.random.randint(index_key, (size,), 0, N_ROWS)
            batch = jax.tree.map(lambda column: column[indices], data)
            theta = sgld.step(step_key, theta, batch, STEP_SIZE / 2)
            return theta, theta

        return lax.scan(step, start, jax.random.split(key, STEPS))[1]

    compiled = eqx.filter_jit(run)
    return lambda: compiled(posterior.data, anchor.position, jax.random.key(0))


def main() -> None:
    anchor = tallmc.laplace(covertype_shaped())
    rows = []
    for size in (32, 436):
        calls = {
            "blackjax": blackjax_sgld(size, anchor),
            "sgld": ours(tallmc.sgld(STEP_SIZE, size), anchor),
            "sgld_wor": ours(tallmc.sgld(STEP_SIZE, size, replace=False), anchor),
            "sgld_cv": ours(tallmc.sgld_cv(STEP_SIZE, size), anchor),
            "sgld_ps": ours(tallmc.sgld_ps(STEP_SIZE, size), anchor),
            "sgld_cv_ps": ours(tallmc.sgld_cv_ps(STEP_SIZE, size), anchor),
        }
        seconds = best_seconds(calls)
        for name, took in seconds.items():
            against_blackjax, against_sgld = took / seconds["blackjax"], took / seconds["sgld"]
            target = {("sgld", 32): "≤ 0.5 of BlackJAX", ("sgld_cv_ps", 32): "≤ 2 of sgld"}.get((name, size), "")
            rows.append((size, name, f"{took / STEPS * 1e6:.1f}", f"{against_blackjax:.2f}", f"{against_sgld:.2f}", target))
    columns = ("size", "method", "µs a step", "of BlackJAX in a scan", "of sgld", "target")
    print_table("A step, one chain, covertype's shape", columns, rows)
    print_adaptive(anchor)


def print_adaptive(anchor: tallmc.Anchor) -> None:
    """Adaptive size: seconds against rows, with thresholds that differ by factors of four."""
    posterior, rows = covertype_shaped(), []
    pilot = tallmc.asgld_cv_ps(STEP_SIZE, noise_threshold=1.0).prepare(posterior, anchor).kernel
    per_distance = float(pilot.selection.rows_per_squared_distance)
    spread = float(np.trace(np.asarray(anchor.covariance)))
    for wanted in (256, 1024, 4096, 16384):
        run = tallmc.asgld_cv_ps(STEP_SIZE, noise_threshold=per_distance * spread / wanted)
        start = np.asarray(anchor.position + anchor.factor @ np.random.default_rng(0).normal(size=posterior.dim))
        draws = tallmc.sample(posterior, run, chains=1, draws=STEPS, burn_in=0, start={"beta": start}, anchor=anchor)
        used, took = draws.n_row_evals_sampling, draws.timing.sampling
        rows.append((wanted, f"{used / STEPS:.0f}", f"{took / STEPS * 1e6:.0f}", f"{took / used * 1e9:.0f}"))
    print_table("Adaptive size, one chain", ("rows wanted", "rows used a step", "µs a step", "ns a row"), rows)
