"""Run chains, each with its own anchor, and record the gradient of every step.

`tallmc.sample` uses one anchor for all chains and does not keep gradients. To reproduce published
runs, `trace` takes one kernel per chain and records the estimate that each step used, which is the
gradient *at the position before the step*.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from tallmc._anchor.anchor import Anchor, find_anchor
from tallmc._anchor.optimisers import Adam
from tallmc._api.sample import sample
from tallmc._core.errors import SamplingWarning
from tallmc._core.random import new_key
from tallmc._engine.kernel import BoundKernel, KernelStep
from tallmc._engine.run import Progress, Run
from tallmc._rows.law import AbstractStream
from tallmc.methods.abstract import AbstractMethod
from tallmc.methods.method import Method
from tallmc.models.posterior import AbstractPosterior
from tallmc.results.draws import Draws
from tallmc.subsample.selection import WithReplacement

Share = Callable[[float], None]
"""Callback that receives the share of the work that is done."""


class Trace(NamedTuple):
    """Positions, gradient estimates and subsample sizes of every step."""

    positions: Float[np.ndarray, "chains steps d"]
    """θ₁, θ₂, …"""
    gradients: Float[np.ndarray, "chains steps d"]
    """∇f̂(θ₀), ∇f̂(θ₁), …, one step behind the positions."""
    sizes: Int[np.ndarray, "chains steps"]
    """Rows used by each gradient."""


def adam_anchors(
    posterior: AbstractPosterior,
    starts: Float[np.ndarray, "chains d"],
    *,
    steps: int,
    size: int,
    seed: int,
    share: Share,
) -> list[Anchor]:
    """Return one anchor per start: the last position of `steps` steps of Adam at step size 10⁻³.

    The anchors are used whether or not Adam has converged.
    """
    anchors = []
    with warnings.catch_warnings():
        # The authors' anchors are far from the mode, too.
        warnings.filterwarnings("ignore", "the anchor is")
        for chain, start in enumerate(starts):
            posterior_from_start = eqx.tree_at(
                lambda p: p.model.init, posterior, jnp.asarray(start, posterior.dtype)
            )
            anchors.append(
                find_anchor(posterior_from_start, optimiser=Adam(1e-3, steps, size, seed + chain))
            )
            share((chain + 1) / len(starts))
    return anchors


def kernel_of(
    method: Method, posterior: AbstractPosterior, anchor: Anchor | None = None
) -> BoundKernel:
    """Prepare a method. The anchor is passed only if the method needs one."""
    return method.prepare(posterior, anchor if method.needs else None).kernel


def kernels(
    method: Method, posterior: AbstractPosterior, anchors: Sequence[Anchor]
) -> list[BoundKernel]:
    """Prepare a method once per anchor."""
    return [kernel_of(method, posterior, anchor) for anchor in anchors]


def stream_of(bound: BoundKernel) -> AbstractStream:
    """Return the stream from which a prepared method of fixed size draws its rows."""
    selection = bound.composition.selection
    assert isinstance(selection, WithReplacement), "a method of fixed size with replacement"
    return selection.stream


def trace(
    of_chains: Sequence[BoundKernel],
    starts: Float[np.ndarray, "chains d"],
    steps: int,
    *,
    burn_in: int = 0,
    seed: int,
    share: Share,
) -> Trace:
    """Run one chain per kernel: `burn_in` discarded steps, then `steps` recorded ones."""
    keys = jax.random.split(new_key(seed), len(of_chains))
    traces = []
    for chain, (bound, start) in enumerate(zip(of_chains, starts, strict=True)):
        at = jnp.asarray(start[None], bound.posterior.dtype)
        key = keys[chain : chain + 1]
        run = Run(bound, key, at, burn_in, thin=1, n_draws=steps, record=_record_gradient)
        run.run_to(steps)
        stats = run.sample_stats()
        traces.append((run.positions(), stats["gradient"], stats["batch_size"]))
        share((chain + 1) / len(of_chains))
    return Trace(*map(np.concatenate, zip(*traces, strict=True)))


def _record_gradient(step: KernelStep) -> dict[str, Array]:
    assert step.gradient is not None, "the step of a composition"
    return {"gradient": step.gradient}


def quietly_sampled(
    posterior: AbstractPosterior,
    method: AbstractMethod,
    anchor: Anchor,
    *,
    chains: int,
    n_draws: int,
    thin: int,
    seed: int,
    share: Share,
    start: Float[np.ndarray, "*chains d"] | None = None,
) -> Draws:
    """Run `tallmc.sample` without burn-in, from the anchor unless a start is given."""
    return quiet_sample(
        posterior,
        method,
        chains=chains,
        n_draws=n_draws,
        thin=thin,
        burn_in=0,
        seed=seed,
        start=np.asarray(anchor.position) if start is None else start,
        anchor=anchor if method.needs > 0 else None,
        share=share,
    )


def quiet_sample(
    posterior: AbstractPosterior,
    method: AbstractMethod | None = None,
    *,
    share: Share,
    **settings: Any,
) -> Draws:
    """Run `tallmc.sample` without its warnings: the figures show the problems they report."""

    def report_share(progress: Progress) -> None:
        if not progress.is_preparing:
            share(progress.step / progress.n_steps)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        return sample(posterior, method, callback=report_share, **settings)
