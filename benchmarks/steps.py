"""The cost per step of SGLD, relative to the peers and to a loop in C.

Also the cost per step of other methods, of many chains and of an adaptive size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import tallmc
from tallmc._engine.kernel import BoundKernel
from tallmc._engine.run import DrawBlock, DrawSink, Run, chain_keys
from tallmc.subsample.bounded_noise import AdaptiveSelection

from .problem import covertype_shaped
from .report import print_table
from .timing import Seconds, best_seconds

STEP_SIZE, STEPS = 1e-7, 2048
SIZES, MANY_CHAINS = (32, 436), 64
DOCUMENTED_STEPS = 256  # the documented loop is in Python, which is slow
TARGETS = {
    (32, "BlackJAX in a scan"): 0.35,
    (436, "BlackJAX in a scan"): 0.7,
    (32, "SGMCMCJax 0.2.13 (jax 0.4.23)"): 1.0,
    (436, "SGMCMCJax 0.2.13 (jax 0.4.23)"): 1.1,
    (32, "the floor, uniform"): 2.5,
    (436, "the floor, uniform"): 2.5,
}


def ours(method: tallmc.Method, anchor: tallmc.anchor.Anchor, chains: int = 1) -> Callable[[], Any]:
    bound = method.prepare(covertype_shaped(), anchor if method.needs else None).kernel
    return steps_of(bound, anchor.position, chains)


def steps_of(
    bound: BoundKernel, start: Any, chains: int = 1, n_draws: int = STEPS
) -> Callable[[], Any]:
    call = recorded_steps(bound, start, chains, n_draws)
    return lambda: call().positions


def recorded_steps(
    bound: BoundKernel, start: Any, chains: int = 1, n_draws: int = STEPS
) -> Callable[[], DrawBlock]:
    """A call that runs `STEPS` steps as the driver does. No state is kept between calls."""
    positions = jnp.broadcast_to(start, (chains, *start.shape))
    run = Run(bound, chain_keys(0, chains), positions, 0, STEPS // n_draws, n_draws)
    run.compile()
    at_start = run.snapshot()

    def call() -> DrawBlock:
        run.restore(at_start)
        run.sink = DrawSink()
        run.run_to(n_draws)
        return run.sink.whole()

    return call


def main(quick: bool = False) -> None:
    anchor = tallmc.anchor.find_anchor(covertype_shaped())
    print_peers(anchor, quick)
    print_methods(anchor)
    if not quick:
        print_chains(anchor)
        print_adaptive(anchor)


def print_peers(anchor: tallmc.anchor.Anchor, quick: bool) -> None:
    from .peers import blackjax_sgld
    from .peers.environment import PEERS, worker
    from .peers.floor import floor

    posterior, rows = covertype_shaped(), []
    x, y = (np.asarray(column, np.float32) for column in (posterior.data.x, posterior.data.y))
    weights = np.asarray(tallmc.subsample.gradient_weights(posterior, anchor), np.float64)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        np.savez(data, x=x, y=y)
        for size in SIZES[:1] if quick else SIZES:
            calls = {
                "tallmc": ours(tallmc.methods.sgld(STEP_SIZE, size), anchor),
                "tallmc, preferential": ours(tallmc.methods.sgld_ps(STEP_SIZE, size), anchor),
                "BlackJAX in a scan": blackjax_sgld.in_a_scan(posterior, size, STEPS, STEP_SIZE),
                "BlackJAX as documented": blackjax_sgld.as_documented(
                    posterior, size, DOCUMENTED_STEPS, STEP_SIZE
                ),
                "the floor, uniform": floor(x, y, size, STEPS, STEP_SIZE),
                "the floor, alias table": floor(x, y, size, STEPS, STEP_SIZE, weights),
                **(
                    {}
                    if quick
                    else {peer.name: worker(peer, data, size, STEPS, STEP_SIZE) for peer in PEERS}
                ),
            }
            seconds = best_seconds({name: call for name, call in calls.items() if call is not None})
            for name, took in seconds.items():
                steps = DOCUMENTED_STEPS if name == "BlackJAX as documented" else STEPS
                mine = seconds["tallmc, preferential" if "alias" in name else "tallmc"] / STEPS
                target = TARGETS.get((size, name))
                shown = f"≤ {target}" if target else ""
                rows.append((size, name, took.each(steps), f"{mine / (took / steps):.2f}", shown))
    print_table(
        "A step of SGLD, one chain",
        ("size", "library", "µs a step", "tallmc's of this one's", "target"),
        rows,
    )


def print_methods(anchor: tallmc.anchor.Anchor) -> None:
    """SGLD-CV-PS and the default method, relative to SGLD with as many rows."""
    rows = []
    default = tallmc.Method(
        dynamics=tallmc.dynamics.LeimkuhlerMatthews(),
        gradient=tallmc.gradient.ControlVariate(order=2),
        subsample=tallmc.subsample.Preferential("residual"),
        batch_size=tallmc.subsample.TargetNoise(64, noise=1.0),
        geometry=tallmc.geometry.Dense(),
        step_size=0.5,
    )
    for size, methods in {
        32: {"sgld_cv_ps": (tallmc.methods.sgld_cv_ps(STEP_SIZE, 32), "≤ 1.5")},
        64: {
            "sgld_cv_ps": (tallmc.methods.sgld_cv_ps(STEP_SIZE, 64), "≤ 1.5"),
            "the default's": (default, "≤ 1.5"),
        },
        436: {"sgld_cv_ps": (tallmc.methods.sgld_cv_ps(STEP_SIZE, 436), "≤ 1.5")},
    }.items():
        calls = {"sgld": ours(tallmc.methods.sgld(STEP_SIZE, size), anchor)}
        seconds = best_seconds(
            calls | {name: ours(method, anchor) for name, (method, _) in methods.items()}
        )
        for name, took in seconds.items():
            target = methods[name][1] if name in methods else ""
            rows.append((size, name, took.each(STEPS), f"{took / seconds['sgld']:.2f}", target))
    print_table(
        "A step of other methods, one chain",
        ("size", "method", "µs a step", "of sgld", "target"),
        rows,
    )


def print_chains(anchor: tallmc.anchor.Anchor) -> None:
    method = tallmc.methods.sgld(STEP_SIZE, 32)
    seconds = best_seconds({chains: ours(method, anchor, chains) for chains in (1, 8, MANY_CHAINS)})
    rows = []
    for chains, took in seconds.items():
        ratio = took / chains / seconds[1]
        rows.append(
            (
                chains,
                Seconds.each(took, STEPS * chains),
                f"{ratio:.2f}",
                "≤ 0.35" if chains == MANY_CHAINS else "",
            )
        )
    print_table(
        "A chain-step of SGLD, n = 32",
        ("chains", "µs a chain-step", "of one chain", "target"),
        rows,
    )


def print_adaptive(anchor: tallmc.anchor.Anchor) -> None:
    """Adaptive size: time per row, for thresholds that differ by factors of four."""
    posterior, rows = covertype_shaped(), []
    pilot = (
        tallmc.methods.asgld_cv_ps(STEP_SIZE, noise_threshold=1.0).prepare(posterior, anchor).kernel
    )
    selection = pilot.composition.selection
    assert isinstance(selection, AdaptiveSelection) and anchor.factor is not None
    per_distance = float(selection.rows_per_squared_distance)
    spread = float(np.trace(np.asarray(anchor.covariance)))
    normal = np.random.default_rng(0).normal(size=posterior.dim).astype(np.float32)
    start = anchor.position + anchor.factor @ normal
    calls = {}
    for wanted in (256, 1024, 4096, 16384):
        method = tallmc.methods.asgld_cv_ps(
            STEP_SIZE, noise_threshold=per_distance * spread / wanted
        )
        calls[wanted] = recorded_steps(method.prepare(posterior, anchor).kernel, start)
    for wanted, took in best_seconds(calls).items():
        used = int(calls[wanted]().stats["n_row_evals"][0, -1])
        rows.append((wanted, f"{used / STEPS:.0f}", took.each(STEPS), f"{took / used * 1e9:.0f}"))
    columns = (
        "rows wanted",
        "rows used a step",
        "µs a step",
        "ns a row (target: the same within 30 %)",
    )
    print_table("Adaptive size, one chain", columns, rows)
