"""The compiled loop: the steps of many chains within one block, from a supply made beforehand.

The division of a run into calls does not change its draws (`supply.py`).

Draws are recorded in place. Among the steps after burn-in in which the schedule samples (usually
all), the k-th writes to slot k // thin, so each slot keeps the last step of its window.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

from .._core.errors import Outcome, outcome_of
from .._core.programs import Static, quickly_compiled
from .._rows.access import AbstractRows
from .kernel import AbstractKernel, ChainState, Drawn, Gathered, KernelStep, NewChain

_GPU_UNROLL = 2

Carry = TypeVar("Carry")
Record = Callable[[KernelStep], dict[str, Array]]  # returns further values to record per step


class RunState(eqx.Module):
    """The state of all chains, sufficient to continue the run."""

    chains: ChainState
    outcome: Int[Array, " chains"]
    failed_at: Int[Array, " chains"]  # the step at which each chain failed; −1 if it has not failed


class RecordedSteps(NamedTuple):
    """The values that one call recorded, per slot."""

    positions: Float[Any, "slots chains d"]
    stats: dict[str, Any]  # each has shape (slots, chains, ...)
    n_rows: Int[Any, " chains"]
    """Rows touched per chain in this call, if the number depends on the state; else zero."""


class Window(NamedTuple):
    """The steps of one block that a call runs, and the rule for which steps become draws.

    Made on the host: every scalar operation would be a kernel to compile.
    """

    block_start: Int[Any, ""]
    first: Int[Any, ""]
    stop: Int[Any, ""]
    before_sampling: Int[Any, ""]
    """Steps of the burn-in in which the schedule samples."""
    thin: Int[Any, ""]
    completed: Int[Any, ""]
    """Draws that are complete before the first step."""

    @classmethod
    def of(cls, *numbers: int) -> Window:
        return cls(*(np.array(number, np.int32) for number in numbers))


class Stepper(NamedTuple):
    """What the compiled programs of a run share."""

    kernel: AbstractKernel
    rows: AbstractRows  # the rows that a step reads besides its supply
    record: Record | None = None


@quickly_compiled
def start_chains(
    arrays: list[Array],
    keys: Key[Array, " chains"],
    positions: Float[Any, "chains d"],
    carried: Any,
    supply: Drawn | Gathered,
    *,
    static: Static,
) -> RunState:
    """Make the state before the first step. `arrays` and `static` are the parts of a `Stepper`.

    `carried` comes from `kernel.start_memory`. `keys` and `supply` are used for nothing else.
    """
    kernel, rows, _ = static.joined(arrays)

    def init(key: Array, position: Array, carried: Any, supply: Any) -> Any:
        new = NewChain(key, position, carried, _gathered(kernel, supply, rows))
        return kernel.init(new, rows)

    first_step = jax.tree.map(lambda leaf: leaf[0], supply)
    chains = jax.vmap(init)(keys, positions, carried, first_step)
    finite = jax.vmap(_all_finite)(chains)
    outcome = jnp.where(finite, jax.vmap(outcome_of)(positions), Outcome.NON_FINITE)
    outcome = outcome.astype(jnp.int32)
    failed_at = jnp.where(outcome == Outcome.OK, -1, 0).astype(jnp.int32)
    at_rest = jnp.where((outcome == Outcome.OK)[:, None], chains.position, kernel.rest)
    chains = eqx.tree_at(lambda state: state.motion.position, chains, at_rest)
    return RunState(chains, outcome, failed_at)


@quickly_compiled
def advance(
    arrays: list[Array],
    state: RunState,
    supply: Drawn | Gathered,
    window: Window,
    *,
    static: Static,
    slots: int,
) -> tuple[RunState, RecordedSteps]:
    """Run the steps of the window, all in the block with this supply.

    The draws that they complete fill the first of the `slots`, in order. `arrays` and `static` are
    the parts of a `Stepper`.
    """
    kernel = static.joined(arrays).kernel

    @jax.jit  # traced once, for the shapes of its statistics and for the loop
    def chain_step(arrays: list[Array], *state_and_supply: Any) -> Any:
        stepper = static.joined(arrays)
        step = functools.partial(_chain_step, stepper)
        return jax.vmap(step, in_axes=(0, 0, 0, 0, None))(*state_and_supply)

    now = state.chains, state.outcome, state.failed_at
    first_supply = jax.tree.map(lambda leaf: leaf[0], supply)
    shapes = jax.eval_shape(chain_step, arrays, *now, first_supply, jnp.int32(0))[-1]
    carry = (state, _empty_record(state, shapes, slots))
    # With a single chain, an axis of length one makes XLA copy all rows again, in one thread.
    folded = jax.tree.map(
        lambda leaf: leaf.reshape(leaf.shape[0], math.prod(leaf.shape[1:3]), *leaf.shape[3:]),
        supply,
    )

    def run_step(
        step: Array, carry: tuple[RunState, RecordedSteps]
    ) -> tuple[RunState, RecordedSteps]:
        state, recorded = carry
        k = step - window.block_start
        step_supply = jax.tree.map(
            lambda leaf, whole: _of_step(leaf, k).reshape(whole.shape[1:]), folded, supply
        )
        chains, outcome, failed_at, stats = chain_step(
            arrays, state.chains, state.outcome, state.failed_at, step_supply, step
        )
        sampled = kernel.schedule.sampled(step) - window.before_sampling
        slot = lax.div(sampled, window.thin) - window.completed
        slot = jnp.clip(slot, 0, slots - 1)
        alive = (outcome == Outcome.OK)[:, None]
        n_rows = recorded.n_rows
        if "batch_size" in stats:
            n_rows = n_rows + stats["batch_size"]
            stats = {**stats, "n_row_evals": n_rows}
        recorded = RecordedSteps(
            _write(recorded.positions, jnp.where(alive, chains.position, jnp.nan), slot),
            jax.tree.map(lambda buffer, value: _write(buffer, value, slot), recorded.stats, stats),
            n_rows,
        )
        return RunState(chains, outcome, failed_at), recorded

    return _unrolled(jnp.asarray(window.first), jnp.asarray(window.stop), run_step, carry)


def _unrolled(
    start: Array, stop: Array, body: Callable[[Array, Carry], Carry], carry: Carry
) -> Carry:
    """`fori_loop`, unrolled on a GPU, where each iteration waits until the host allows another."""
    unroll = _GPU_UNROLL if jax.default_backend() == "gpu" else 1
    if unroll > 1:
        rounds = (stop - start) // unroll

        def unrolled_body(number: Array, carry: Carry) -> Carry:
            for offset in range(unroll):
                carry = body(start + number * unroll + offset, carry)
            return carry

        carry, start = lax.fori_loop(0, rounds, unrolled_body, carry), start + rounds * unroll
    return lax.fori_loop(start, stop, body, carry)


def _chain_step(
    stepper: Stepper,
    chain: ChainState,
    outcome: Array,
    failed_at: Array,
    supply: Drawn | Gathered,
    step: Array,
) -> tuple[ChainState, Array, Array, dict[str, Array]]:
    """Take one step of one chain. A chain that has failed, or fails now, stays at `kernel.rest`."""
    kernel, rows, record = stepper
    stepped = kernel.step(chain, _gathered(kernel, supply, rows), step, rows)
    moved, stats = stepped.state, stepped.stats
    if record is not None:
        stats = stats | record(stepped)
    found = jnp.where(stepped.outcome == Outcome.OK, outcome_of(moved.position), stepped.outcome)
    now = jnp.where(outcome == Outcome.OK, found, outcome).astype(jnp.int32)
    at_rest = eqx.tree_at(lambda motion: motion.position, chain.motion, kernel.rest)
    motion = jax.tree.map(
        lambda new, old: jnp.where(now == Outcome.OK, new, old), moved.motion, at_rest
    )
    failed_at = jnp.where((now != Outcome.OK) & (outcome == Outcome.OK), step, failed_at)
    # The memory of a failed chain does not matter. Choosing between the old and the new memory with
    # `where` would copy the memory in every step.
    return ChainState(motion, moved.carried), now, failed_at, stats


def _gathered(kernel: AbstractKernel, supply: Drawn | Gathered, rows: AbstractRows) -> Gathered:
    """The supply of one step of one chain, with its rows."""
    return supply if isinstance(supply, Gathered) else kernel.gather(supply, rows)


def _all_finite(chain: Any) -> Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(chain)]))


def _of_step(leaf: Array, k: Array) -> Array:
    """The part of step k of a block. An array of length 1 is the same for all steps."""
    return leaf[0] if leaf.shape[0] == 1 else lax.dynamic_index_in_dim(leaf, k, keepdims=False)


def _write(buffer: Array, value: Array, slot: Array) -> Array:
    return lax.dynamic_update_index_in_dim(buffer, value, slot, 0)


def _empty_record(state: RunState, shapes: dict[str, Any], slots: int) -> RecordedSteps:
    n_chains = state.outcome.shape[0]
    stats = {name: jnp.zeros((slots, *of.shape), of.dtype) for name, of in shapes.items()}
    if "batch_size" in stats:
        stats["n_row_evals"] = jnp.zeros((slots, n_chains), jnp.int32)
    positions = jnp.zeros((slots, *state.chains.position.shape), state.chains.position.dtype)
    return RecordedSteps(positions, stats, jnp.zeros(n_chains, jnp.int32))
