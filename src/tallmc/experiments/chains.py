"""Chains side by side: each with an anchor of its own where it has one, and with the gradients that moved it.

`tallmc.sample` has one anchor for all chains and forgets the gradients. To reproduce what others ran, `trace` takes a kernel for
each chain and keeps the estimate that each step used: the gradient *at the position before the step*.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

from .._anchor import Anchor, laplace
from .._draws import Draws
from .._errors import SamplingWarning
from .._kernel import ChainState, Kernel
from .._loop import block_steps
from .._method import AbstractMethod, Method
from .._modes import Adam
from .._posterior import AbstractPosterior
from .._random import new_key
from .._sample import sample
from ..progress import Progress

_STEPS_PER_CALL = 512

Share = Callable[[float], None]
"""Hears the share of the work that is done."""


class Trace(NamedTuple):
    positions: Float[np.ndarray, "chains steps d"]
    """θ₁, θ₂, …"""
    gradients: Float[np.ndarray, "chains steps d"]
    """∇f̂(θ₀), ∇f̂(θ₁), …: one step behind the positions."""
    sizes: Int[np.ndarray, "chains steps"]
    """Rows of each of these gradients."""


def adam_anchors(
    posterior: AbstractPosterior, starts: Float[np.ndarray, "chains d"], *, steps: int, size: int, seed: int, share: Share
) -> list[Anchor]:
    """One anchor a chain, where Adam with step 10⁻³ is after so many steps from each start: converged or not."""
    anchors = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the anchor is")  # far from the mode, as theirs were
        for chain, start in enumerate(starts):
            here = eqx.tree_at(lambda p: p.init, posterior, jnp.asarray(start, posterior.dtype))
            anchors.append(laplace(here, optimiser=Adam(1e-3, steps, size, seed + chain)))
            share((chain + 1) / len(starts))
    return anchors


def kernel_of(method: Method, posterior: AbstractPosterior, anchor: Anchor | None = None) -> Kernel:
    """The method made ready, around an anchor where it needs one."""
    kernel = method.prepare(posterior, anchor if method.needs else None).kernel
    assert isinstance(kernel, Kernel), "a composition of parts has this kernel"
    return kernel


def kernels(method: Method, posterior: AbstractPosterior, anchors: Sequence[Anchor]) -> list[Kernel]:
    """The method made ready around each of the anchors."""
    return [kernel_of(method, posterior, anchor) for anchor in anchors]


def trace(
    of_chains: Sequence[Kernel], starts: Float[np.ndarray, "chains d"], steps: int, *, burn_in: int = 0, seed: int, share: Share
) -> Trace:
    """Run chains side by side, each with its kernel, for `steps` steps after `burn_in` that are forgotten."""
    keys = jax.random.split(new_key(seed), len(of_chains))
    arrays, static = _side_by_side(of_chains)
    per_block = block_steps(of_chains[0])
    blocks = max(1, _STEPS_PER_CALL // per_block)
    per_call, total = per_block * blocks, burn_in + steps
    state = _start(arrays, static, keys, jnp.asarray(starts, of_chains[0].posterior.dtype))
    kept: list[Trace] = []
    for first in range(0, total, per_call):
        state, recorded = _advance(arrays, static, keys, state, jnp.int32(first // per_block), per_block, blocks)
        kept.append(Trace(*(np.asarray(part)[:, max(burn_in - first, 0) : total - first] for part in recorded)))
        share(min(1.0, (first + per_call) / total))
    return Trace(*(np.concatenate(parts, axis=1) for parts in zip(*kept, strict=True)))


def quietly_sampled(
    posterior: AbstractPosterior,
    method: AbstractMethod,
    anchor: Anchor,
    *,
    chains: int,
    draws: int,
    thin: int,
    seed: int,
    share: Share,
) -> Draws:
    """`tallmc.sample` from the anchor on, without burn-in. Its warnings are left out: the figures show what they are about."""

    def hear(progress: Progress) -> None:
        share(progress.step / progress.n_steps)

    needed = anchor if method.needs > 0 else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        return sample(
            posterior,
            method,
            chains=chains,
            draws=draws,
            thin=thin,
            burn_in=0,
            seed=seed,
            start=np.asarray(anchor.position),
            anchor=needed,
            callback=hear,
        )


class _Static(NamedTuple):
    """What of the kernels is no array, the same for all chains, and which of the arrays are the same too."""

    kernel: Kernel
    shared: tuple[bool, ...]


def _side_by_side(of_chains: Sequence[Kernel]) -> tuple[list[Array], _Static]:
    """The arrays of all kernels: once where they are one and the same, as the data are, else stacked."""
    parts = [eqx.partition(kernel, eqx.is_array) for kernel in of_chains]
    columns = list(zip(*(jax.tree.leaves(arrays) for arrays, _ in parts), strict=True))
    shared = tuple(all(leaf is column[0] for leaf in column) for column in columns)
    arrays = [column[0] if same else jnp.stack(column) for column, same in zip(columns, shared, strict=True)]
    return arrays, _Static(of_chains[0], shared)


def _for_each_chain(static: _Static, arrays: list[Array], fn: Callable[..., Any], *args: Any) -> Any:
    """fn(kernel, …) of every chain."""
    of_first, rest = eqx.partition(static.kernel, eqx.is_array)
    structure = jax.tree.structure(of_first)

    def of_chain(leaves: list[Array], *args: Any) -> Any:
        return fn(eqx.combine(jax.tree.unflatten(structure, leaves), rest), *args)

    axes = [None if same else 0 for same in static.shared]
    return jax.vmap(of_chain, in_axes=(axes, *(0 for _ in args)))(arrays, *args)


@eqx.filter_jit
def _start(arrays: list[Array], static: _Static, keys: Key[Array, " chains"], starts: Float[Array, "chains d"]) -> ChainState:
    return _for_each_chain(static, arrays, lambda kernel, key, start: kernel.init(key, start), keys, starts)


@eqx.filter_jit
def _advance(
    arrays: list[Array],
    static: _Static,
    keys: Key[Array, " chains"],
    state: ChainState,
    first_block: Int[Array, ""],
    per_block: int,
    blocks: int,
) -> tuple[ChainState, tuple[Array, Array, Array]]:
    def of_chain(kernel: Kernel, key: Array, state: ChainState) -> tuple:
        def run_block(state: ChainState, number: Array) -> tuple[ChainState, tuple[Array, Array, Array]]:
            supply = kernel.supply(jax.random.fold_in(key, number), per_block)
            times = number * per_block + jnp.arange(per_block)
            return lax.scan(functools.partial(_step, kernel), state, (supply, times))

        state, recorded = lax.scan(run_block, state, first_block + jnp.arange(blocks))
        return state, jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:]), recorded)

    return _for_each_chain(static, arrays, of_chain, keys, state)


def _step(kernel: Kernel, state: ChainState, given: tuple) -> tuple[ChainState, tuple[Array, Array, Array]]:
    supply, time = given
    rows, step_size = kernel.gather(supply).rows, kernel.schedule(time).astype(state.position.dtype)
    moved = kernel.dynamics.step(
        state.motion, lambda at, to: kernel.estimate(at, rows, state.memory, to), step_size, supply.noise
    )
    state = ChainState(moved.state, moved.estimate.memory)
    return state, (state.position, moved.estimate.gradient, moved.estimate.n_rows)
