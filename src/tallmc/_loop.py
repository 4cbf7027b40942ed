"""The compiled loop: many chains, many steps, in blocks of pre-drawn randomness.

Step t of a chain belongs to block t // K. A block's randomness comes from `fold_in(chain key, block number)` in one vectorised
call and an inner loop consumes it. A run may be cut at any step and continued from there: the numbers a step sees depend on the
seed, the chain and t alone, so how the host cuts a run into calls changes nothing.

Draws are recorded in place: of the steps after the burn-in in which the schedule samples (mostly all), the k-th writes slot
k // thin, so that the last step of each window is what remains.
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

from ._kernel import AbstractKernel, ChainState, Supply
from ._outcome import Outcome, outcome_of

_BLOCK_FLOATS = 2**20
_GATHER_FLOATS = 2**23
_MOST_BLOCK_STEPS = 512
_TURNS_TOGETHER = 4
_INIT_BLOCK = 2**32 - 1  # a block number that no step has

Carry = TypeVar("Carry")


class RunState(eqx.Module):
    """All that a run needs to go on: the state, outcome and step of failure (−1: none) of each chain."""

    chains: ChainState
    outcome: Int[Array, " chains"]
    failed_at: Int[Array, " chains"]


class Recorded(eqx.Module):
    """What a call recorded, slot by slot, and the rows each chain has touched in it where that depends on the state."""

    positions: Float[Array, "slots chains d"]
    stats: dict[str, Array]
    n_rows: Int[Array, " chains"]


def block_steps(kernel: AbstractKernel) -> int:
    """K: as many steps as keep a block's rows in cache. A power of two that depends on the shapes of one chain only."""
    floats = kernel.posterior.width * max(1, kernel.rows_ahead)
    fitting = max(1, _BLOCK_FLOATS // floats)
    return min(_MOST_BLOCK_STEPS, 1 << (fitting.bit_length() - 1))


@eqx.filter_jit
def start_run(kernel: AbstractKernel, keys: Key[Array, " chains"], positions: Float[Array, "chains d"]) -> RunState:
    init_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, _INIT_BLOCK)
    chains = jax.vmap(kernel.init)(init_keys, positions)
    finite = jax.vmap(_all_finite)(chains)
    outcome = jnp.where(finite, jax.vmap(outcome_of)(positions), Outcome.NON_FINITE).astype(jnp.int32)
    failed_at = jnp.where(outcome == Outcome.OK, -1, 0).astype(jnp.int32)
    at_rest = jnp.where((outcome == Outcome.OK)[:, None], chains.position, kernel.rest)
    return RunState(eqx.tree_at(lambda state: state.motion.position, chains, at_rest), outcome, failed_at)


@eqx.filter_jit
def advance(
    kernel: AbstractKernel,
    keys: Key[Array, " chains"],
    state: RunState,
    first: Int[Array, ""],
    stop: Int[Array, ""],
    burn_in: Int[Array, ""],
    thin: Int[Array, ""],
    slots: int,
) -> tuple[RunState, Recorded]:
    """Run steps `first` to `stop` (exclusive). The draws completed in them fill the first slots, in order."""
    n_chains, block = keys.shape[0], block_steps(kernel)
    gather_ahead = n_chains * block * kernel.rows_ahead * kernel.posterior.width <= _GATHER_FLOATS
    sampled, before_sampling = kernel.schedule.sampled, kernel.schedule.sampled(burn_in)
    completed_before = jnp.maximum(sampled(first) - before_sampling, 0) // thin
    chain_step = jax.vmap(_chain_step, in_axes=(None, 0, 0, 0, 0, None))

    def run_block(number: Array, carry: tuple[RunState, Recorded]) -> tuple[RunState, Recorded]:
        block_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)
        supply = jax.vmap(lambda key: kernel.supply(key, block), out_axes=1)(block_keys)
        supply = kernel.gather(supply) if gather_ahead else supply
        # An axis of length one, that of a single chain, would have XLA copy all rows once more, and in one thread.
        folded = jax.tree.map(lambda leaf: leaf.reshape(block, math.prod(leaf.shape[1:3]), *leaf.shape[3:]), supply)

        def run_step(k: Array, carry: tuple[RunState, Recorded]) -> tuple[RunState, Recorded]:
            state, recorded = carry
            step = number * block + k
            step_supply = jax.tree.map(
                lambda leaf, whole: lax.dynamic_index_in_dim(leaf, k, keepdims=False).reshape(whole.shape[1:]), folded, supply
            )
            chains, outcome, failed_at, stats = chain_step(
                kernel, state.chains, state.outcome, state.failed_at, step_supply, step
            )
            slot = jnp.clip(lax.div(sampled(step) - before_sampling, thin) - completed_before, 0, slots - 1)
            alive = (outcome == Outcome.OK)[:, None]
            n_rows = recorded.n_rows
            if "batch_size" in stats:
                n_rows = n_rows + stats["batch_size"]
                stats = {**stats, "n_row_evals": n_rows}
            recorded = Recorded(
                _write(recorded.positions, jnp.where(alive, chains.position, jnp.nan), slot),
                jax.tree.map(lambda buffer, value: _write(buffer, value, slot), recorded.stats, stats),
                n_rows,
            )
            return RunState(chains, outcome, failed_at), recorded

        return _unrolled(jnp.maximum(first - number * block, 0), jnp.minimum(stop - number * block, block), run_step, carry)

    empty = _empty_record(kernel, keys, state, slots)
    return lax.fori_loop(first // block, (stop - 1) // block + 1, run_block, (state, empty))


def _unrolled(start: Array, stop: Array, body: Callable[[Array, Carry], Carry], carry: Carry) -> Carry:
    """`fori_loop`; on a GPU several turns at a time, since it waits for the host at each to hear whether there is another."""
    together = _TURNS_TOGETHER if jax.default_backend() == "gpu" else 1
    if together > 1:
        rounds = (stop - start) // together

        def turns(number: Array, carry: Carry) -> Carry:
            for turn in range(together):
                carry = body(start + number * together + turn, carry)
            return carry

        carry, start = lax.fori_loop(0, rounds, turns, carry), start + rounds * together
    return lax.fori_loop(start, stop, body, carry)


def _chain_step(
    kernel: AbstractKernel, chain: ChainState, outcome: Array, failed_at: Array, supply: Supply, step: Array
) -> tuple[ChainState, Array, Array, dict[str, Array]]:
    """A step of one chain. One that has failed, or fails now, is put to rest and stays there."""
    moved, stats, ended = kernel.step(chain, supply, step)
    found = jnp.where(ended == Outcome.OK, outcome_of(moved.position), ended)
    now = jnp.where(outcome == Outcome.OK, found, outcome).astype(jnp.int32)
    at_rest = eqx.tree_at(lambda motion: motion.position, chain.motion, kernel.rest)
    motion = jax.tree.map(lambda new, old: jnp.where(now == Outcome.OK, new, old), moved.motion, at_rest)
    failed_at = jnp.where((now != Outcome.OK) & (outcome == Outcome.OK), step, failed_at)
    # The memory of a chain at rest is of no consequence; to choose between two would be to copy it in every step.
    return ChainState(motion, moved.memory), now, failed_at, stats


def _all_finite(chain: Any) -> Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(chain)]))


def _write(buffer: Array, value: Array, slot: Array) -> Array:
    return lax.dynamic_update_index_in_dim(buffer, value, slot, 0)


def _empty_record(kernel: AbstractKernel, keys: Array, state: RunState, slots: int) -> Recorded:
    def first_stats() -> dict[str, Array]:
        supply = jax.tree.map(lambda leaf: leaf[0], kernel.supply(keys[0], 1))
        chain = jax.tree.map(lambda leaf: leaf[0], state.chains)
        return kernel.step(chain, supply, jnp.int32(0)).stats

    n_chains = keys.shape[0]
    stats = {name: jnp.zeros((slots, n_chains), of.dtype) for name, of in eqx.filter_eval_shape(first_stats).items()}
    if "batch_size" in stats:
        stats["n_row_evals"] = jnp.zeros((slots, n_chains), jnp.int32)
    positions = jnp.zeros((slots, *state.chains.position.shape), state.chains.position.dtype)
    return Recorded(positions, stats, jnp.zeros(n_chains, jnp.int32))
