"""The compiled loop: many chains, many steps, in blocks of pre-drawn randomness.

Step t of a chain belongs to block t // K. One vectorised call draws a block's randomness from
`fold_in(chain key, block number)`, and an inner loop consumes it. The random numbers of step t
depend only on the seed, the chain and t. So a run may be cut at any step and continued from there:
the division of a run into calls does not change the draws.

Rows are gathered for a whole block if they fit, otherwise per step.

Draws are recorded in place. Among the steps after burn-in in which the schedule samples (usually
all), the k-th writes to slot k // thin, so each slot keeps the last step of its window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key

from ..core.outcome import Outcome, outcome_of
from ..rows.base import AbstractRows
from .kernel import AbstractKernel, ChainState, Drawn, Gathered, KernelStep

_BLOCK_FLOATS = 2**20
_GATHER_FLOATS = 2**23
_MOST_BLOCK_STEPS = 512
_MOST_CHAINS_AT_ONCE, _CHAINS_PER_GROUP = 512, 128
_GPU_UNROLL = 4
_INIT_BLOCK = 2**32 - 1  # no step belongs to this block number

Carry = TypeVar("Carry")
Record = Callable[[KernelStep], dict[str, Array]]
"""Returns further values to record per step."""


class RunState(eqx.Module):
    """The state of all chains, sufficient to continue the run."""

    chains: ChainState
    outcome: Int[Array, " chains"]
    failed_at: Int[Array, " chains"]
    """The step at which each chain failed; −1 if it has not failed."""


class RecordedSteps(eqx.Module):
    """The values that one call recorded, per slot."""

    positions: Float[Array, "slots chains d"]
    stats: dict[str, Array]
    """Each has shape (slots, chains, ...)."""
    n_rows: Int[Array, " chains"]
    """Rows touched per chain in this call, if the number depends on the state; else zero."""


class Window(eqx.Module):
    """The steps that one call runs, and the rule for which steps become draws."""

    first: Int[Array, ""]
    stop: Int[Array, ""]
    burn_in: Int[Array, ""]
    thin: Int[Array, ""]
    slots: int = eqx.field(static=True)

    @classmethod
    def of(cls, first: int, stop: int, burn_in: int, thin: int, slots: int) -> Window:
        return cls(jnp.int32(first), jnp.int32(stop), jnp.int32(burn_in), jnp.int32(thin), slots)


def block_steps(kernel: AbstractKernel, source: AbstractRows) -> int:
    """K: the number of steps for which a block's rows fit in cache.

    K is a power of two and depends only on the shapes of one chain.
    """
    floats = kernel.model.width(source) * max(1, kernel.rows_ahead)
    fitting = max(1, _BLOCK_FLOATS // floats)
    return min(_MOST_BLOCK_STEPS, 1 << (fitting.bit_length() - 1))


@eqx.filter_jit
def start_run(
    kernel: AbstractKernel,
    source: AbstractRows,
    keys: Key[Array, " chains"],
    positions: Float[Array, "chains d"],
    memory: Any,
    chain_axes: Any = None,
) -> RunState:
    """Make the state before the first step; `memory` comes from `kernel.start_memory`."""

    def init(kernel: AbstractKernel, key: Array, position: Array, memory: Any) -> ChainState:
        return kernel.init(key, position, memory, source)

    init_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, _INIT_BLOCK)
    chains = jax.vmap(init, in_axes=(chain_axes, 0, 0, 0))(kernel, init_keys, positions, memory)
    finite = jax.vmap(_all_finite)(chains)
    outcome = jnp.where(finite, jax.vmap(outcome_of)(positions), Outcome.NON_FINITE).astype(
        jnp.int32
    )
    failed_at = jnp.where(outcome == Outcome.OK, -1, 0).astype(jnp.int32)
    at_rest = jnp.where((outcome == Outcome.OK)[:, None], chains.position, kernel.rest)
    return RunState(
        eqx.tree_at(lambda state: state.motion.position, chains, at_rest), outcome, failed_at
    )


@eqx.filter_jit
def advance(
    kernel: AbstractKernel,
    source: AbstractRows,
    keys: Key[Array, " chains"],
    state: RunState,
    window: Window,
    record: Record | None = None,
    chain_axes: Any = None,
) -> tuple[RunState, RecordedSteps]:
    """Run the steps of the window. The draws that they complete fill the first slots, in order.

    `chain_axes` marks the kernel arrays that have one entry per chain (see `BoundKernel`).
    """
    groups = 1 if chain_axes is not None else _chain_groups(keys.shape[0])
    if groups == 1:
        return _advance_group(kernel, source, keys, state, window, record, chain_axes)

    def advance_group(group: tuple[Array, RunState]) -> tuple[RunState, RecordedSteps]:
        return _advance_group(kernel, source, *group, window, record, None)

    states, records = lax.map(advance_group, _divided((keys, state), groups))
    return _joined(states, records, keys.shape[0])


def _chain_groups(n_chains: int) -> int:
    """The number of groups of chains that run one after the other.

    On a CPU the randomness of a block must fit in cache for all chains that run together.
    """
    if jax.default_backend() != "cpu" or n_chains <= _MOST_CHAINS_AT_ONCE:
        return 1
    return -(-n_chains // _CHAINS_PER_GROUP)


def _divided(chains: Any, groups: int) -> Any:
    """Arrays (chains, ...) as (groups, chains per group, ...); the last chains may be repeated."""
    n_chains = jax.tree.leaves(chains)[0].shape[0]
    per_group = -(-n_chains // groups)
    numbers = jnp.minimum(jnp.arange(groups * per_group), n_chains - 1)
    return jax.tree.map(
        lambda leaf: leaf[numbers].reshape(groups, per_group, *leaf.shape[1:]), chains
    )


def _joined(
    states: RunState, records: RecordedSteps, n_chains: int
) -> tuple[RunState, RecordedSteps]:
    """The inverse of `_divided`."""

    def of_chains(leaf: Array) -> Array:
        return leaf.reshape(-1, *leaf.shape[2:])[:n_chains]

    def of_slots(leaf: Array) -> Array:
        slots = jnp.moveaxis(leaf, 0, 1)
        return slots.reshape(slots.shape[0], -1, *slots.shape[3:])[:, :n_chains]

    positions, stats = jax.tree.map(of_slots, (records.positions, records.stats))
    return jax.tree.map(of_chains, states), RecordedSteps(
        positions, stats, of_chains(records.n_rows)
    )


def _advance_group(
    kernel: AbstractKernel,
    source: AbstractRows,
    keys: Key[Array, " chains"],
    state: RunState,
    window: Window,
    record: Record | None,
    chain_axes: Any,
) -> tuple[RunState, RecordedSteps]:
    block = block_steps(kernel, source)

    def run_block(
        number: Array, carry: tuple[RunState, RecordedSteps]
    ) -> tuple[RunState, RecordedSteps]:
        supply = _block_supply(kernel, source, keys, number, chain_axes)
        return _run_block(kernel, source, supply, number, window, record, chain_axes, carry)

    empty = _empty_record(kernel, source, keys, state, window.slots, record, chain_axes)
    last = (window.stop - 1) // block + 1
    return lax.fori_loop(window.first // block, last, run_block, (state, empty))


@eqx.filter_jit
def draw_block(
    kernel: AbstractKernel,
    source: AbstractRows,
    keys: Key[Array, " chains"],
    number: Int[Array, ""],
    chain_axes: Any = None,
) -> Drawn | Gathered:
    """Draw the randomness of one block for all chains, for `advance_in_block`."""
    return _block_supply(kernel, source, keys, number, chain_axes)


@eqx.filter_jit
def advance_in_block(
    kernel: AbstractKernel,
    source: AbstractRows,
    keys: Key[Array, " chains"],
    state: RunState,
    supply: Drawn | Gathered,
    window: Window,
    record: Record | None = None,
    chain_axes: Any = None,
) -> tuple[RunState, RecordedSteps]:
    """`advance` for steps within one block whose randomness is already drawn.

    A run that stops often within a block would otherwise draw the whole block in every call.
    """
    number = window.first // block_steps(kernel, source)
    empty = _empty_record(kernel, source, keys, state, window.slots, record, chain_axes)
    return _run_block(kernel, source, supply, number, window, record, chain_axes, (state, empty))


def _block_supply(
    kernel: AbstractKernel,
    source: AbstractRows,
    keys: Key[Array, " chains"],
    number: Array,
    chain_axes: Any,
) -> Drawn | Gathered:
    block, n_chains = block_steps(kernel, source), keys.shape[0]
    block_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)
    draw = jax.vmap(
        lambda kernel, key: kernel.draw(key, block), in_axes=(chain_axes, 0), out_axes=1
    )
    drawn = draw(kernel, block_keys)
    floats = n_chains * block * kernel.rows_ahead * kernel.model.width(source)
    return kernel.gather(drawn, source) if floats <= _GATHER_FLOATS else drawn


def _run_block(
    kernel: AbstractKernel,
    source: AbstractRows,
    supply: Drawn | Gathered,
    number: Array,
    window: Window,
    record: Record | None,
    chain_axes: Any,
    carry: tuple[RunState, RecordedSteps],
) -> tuple[RunState, RecordedSteps]:
    """Run the steps of the window that belong to block `number`."""
    block, slots = block_steps(kernel, source), window.slots
    sampled, before_sampling = kernel.schedule.sampled, kernel.schedule.sampled(window.burn_in)
    completed_before = jnp.maximum(sampled(window.first) - before_sampling, 0) // window.thin
    chain_step = jax.vmap(_chain_step, in_axes=(chain_axes, None, 0, 0, 0, 0, None, None))
    # With a single chain, an axis of length one makes XLA copy all rows again, in one thread.
    folded = jax.tree.map(
        lambda leaf: leaf.reshape(block, math.prod(leaf.shape[1:3]), *leaf.shape[3:]), supply
    )

    def run_step(k: Array, carry: tuple[RunState, RecordedSteps]) -> tuple[RunState, RecordedSteps]:
        state, recorded = carry
        step = number * block + k
        step_supply = jax.tree.map(
            lambda leaf, whole: lax.dynamic_index_in_dim(leaf, k, keepdims=False).reshape(
                whole.shape[1:]
            ),
            folded,
            supply,
        )
        chains, outcome, failed_at, stats = chain_step(
            kernel, source, state.chains, state.outcome, state.failed_at, step_supply, step, record
        )
        slot = lax.div(sampled(step) - before_sampling, window.thin) - completed_before
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

    first = jnp.maximum(window.first - number * block, 0)
    return _unrolled(first, jnp.minimum(window.stop - number * block, block), run_step, carry)


def _unrolled(
    start: Array, stop: Array, body: Callable[[Array, Carry], Carry], carry: Carry
) -> Carry:
    """`fori_loop`, unrolled on a GPU.

    On a GPU every iteration waits for the host to decide whether another one follows.
    """
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
    kernel: AbstractKernel,
    source: AbstractRows,
    chain: ChainState,
    outcome: Array,
    failed_at: Array,
    supply: Drawn | Gathered,
    step: Array,
    record: Record | None,
) -> tuple[ChainState, Array, Array, dict[str, Array]]:
    """Take one step of one chain. A chain that has failed, or fails now, stays at `kernel.rest`."""
    stepped = _step(kernel, source, chain, supply, step)
    moved = stepped.state
    found = jnp.where(stepped.outcome == Outcome.OK, outcome_of(moved.position), stepped.outcome)
    now = jnp.where(outcome == Outcome.OK, found, outcome).astype(jnp.int32)
    at_rest = eqx.tree_at(lambda motion: motion.position, chain.motion, kernel.rest)
    motion = jax.tree.map(
        lambda new, old: jnp.where(now == Outcome.OK, new, old), moved.motion, at_rest
    )
    failed_at = jnp.where((now != Outcome.OK) & (outcome == Outcome.OK), step, failed_at)
    # The memory of a failed chain does not matter. Choosing between the old and the new memory with
    # `where` would copy the memory in every step.
    return ChainState(motion, moved.memory), now, failed_at, _stats(stepped, record)


def _step(
    kernel: AbstractKernel,
    source: AbstractRows,
    chain: ChainState,
    supply: Drawn | Gathered,
    step: Array,
) -> KernelStep:
    gathered = supply if isinstance(supply, Gathered) else kernel.gather(supply, source)
    return kernel.step(chain, gathered, step, source)


def _stats(stepped: KernelStep, record: Record | None) -> dict[str, Array]:
    return stepped.stats if record is None else stepped.stats | record(stepped)


def _all_finite(chain: Any) -> Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(chain)]))


def _write(buffer: Array, value: Array, slot: Array) -> Array:
    return lax.dynamic_update_index_in_dim(buffer, value, slot, 0)


def _empty_record(
    kernel: AbstractKernel,
    source: AbstractRows,
    keys: Array,
    state: RunState,
    slots: int,
    record: Record | None,
    chain_axes: Any,
) -> RecordedSteps:
    def stats_of(kernel: AbstractKernel, key: Array, chain: ChainState) -> dict[str, Array]:
        drawn = jax.tree.map(lambda leaf: leaf[0], kernel.draw(key, 1))
        return _stats(_step(kernel, source, chain, drawn, jnp.int32(0)), record)

    def first_stats() -> dict[str, Array]:
        return jax.vmap(stats_of, in_axes=(chain_axes, 0, 0))(kernel, keys, state.chains)

    n_chains = keys.shape[0]
    shapes = eqx.filter_eval_shape(first_stats)
    stats = {name: jnp.zeros((slots, *of.shape), of.dtype) for name, of in shapes.items()}
    if "batch_size" in stats:
        stats["n_row_evals"] = jnp.zeros((slots, n_chains), jnp.int32)
    positions = jnp.zeros((slots, *state.chains.position.shape), state.chains.position.dtype)
    return RecordedSteps(positions, stats, jnp.zeros(n_chains, jnp.int32))
