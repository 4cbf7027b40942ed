"""The step of Firefly Monte Carlo: the brightness given the position, and the reverse.

Both parts of a step take the gaps from one function. Rounding in float32 therefore perturbs
log p(θ | rows) by the sum of the errors of the gaps and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, UInt32

from ...core.random import random_words
from ...dynamics.base import AbstractDynamics, AbstractDynamicsState
from ...engine.kernel import AbstractReadingKernel, ChainState, Drawn, Gathered, KernelStep
from ...models.base import AbstractModel
from ...rows.base import AbstractRows
from ...rows.bits import uniform_index
from ...rows.resident import ResidentRows
from ...rows.sums import Sum
from ...schedule import AbstractSchedule
from ...subsample.selection import Estimate, Memory, Transition
from .bits import WORD, BrightRows, pack
from .bound import AbstractBound

_RING_CHUNK = 512
_BRIGHT_CHUNK = 64


class Ring(eqx.Module):
    """Consecutive rows, where row 0 follows row N − 1."""

    start: Int[Array, "*steps"]
    """First row."""
    key: Key[Array, "*steps"]
    """Key for the new brightness of the rows."""


class FireflyState(AbstractDynamicsState):
    """Position θ."""

    position: Float[Array, " d"]


class FireflyKernel(AbstractReadingKernel):
    """Updates the brightness given the position, then the position given the brightness."""

    bound: AbstractBound
    dynamics: AbstractDynamics
    schedule: AbstractSchedule
    rest: Float[Array, " d"]
    ring_size: int = eqx.field(static=True)
    n_rows: int = eqx.field(static=True)

    @property
    def model(self) -> AbstractModel:
        return self.bound.model

    @property
    def rows_per_step(self) -> None:
        return None

    @property
    def most_rows(self) -> int:
        return self.ring_size + 2 * self.n_rows

    def broken_claim(self, chains: ChainState) -> None:
        return None

    def rows_at_start(self) -> int:
        return self.n_rows

    def start_memory(self, positions: Float[Array, "chains d"], source: AbstractRows) -> None:
        return None

    def init(
        self,
        key: PRNGKeyArray,
        position: Float[Array, " d"],
        memory: None,
        gathered: Gathered,
        source: AbstractRows,
    ) -> ChainState:
        # A chunk can start in any word. Words beyond row N that the last chunk reaches stay dark.
        dark = jnp.zeros(-(-self.n_rows // WORD) + _RING_CHUNK // WORD, jnp.uint32)
        everywhere = Ring(jnp.int32(0), key)
        words = self._chain_by_chain(
            FireflyKernel.light_all, _in_memory(source), dark, position, everywhere
        )
        return ChainState(FireflyState(position), words)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        start_key, step_key, noise_key = jax.random.split(key, 3)
        starts = uniform_index(random_words(start_key, (steps,)), jnp.uint32(self.n_rows))
        ring_keys, dynamics_keys = jax.random.split(step_key, (2, steps))
        noise = self.dynamics.noise(noise_key, steps, self.model.init)
        return Drawn(Ring(starts, ring_keys), (dynamics_keys, noise))

    def step(
        self,
        state: ChainState,
        gathered: Gathered,
        step: Int[Array, ""],
        source: AbstractRows,
    ) -> KernelStep:
        return self._chain_by_chain(
            FireflyKernel.step_of_one, _in_memory(source), state, gathered, step
        )

    def step_of_one(
        self, source: ResidentRows, state: ChainState, gathered: Gathered, step: Int[Array, ""]
    ) -> KernelStep:
        """Take one step of one chain: z given θ, then θ given z."""
        words = self.resample(
            source, state.memory, state.position, gathered.selection, self.ring_size
        )
        bright = BrightRows.of(words)
        key, noise = gathered.noise

        def evaluate(at: Float[Array, " d"], transition: Transition | None) -> Estimate:
            return self.evaluate(at, bright, source)

        motion = self.dynamics.init(key, state.position, evaluate)
        step_size = self.schedule(step).astype(state.position.dtype)
        moved = self.dynamics.step(motion, evaluate, step_size, noise)
        stats = {
            "batch_size": self.ring_size + 2 * bright.count,
            "bright_rows": bright.count,
            **moved.stats,
        }
        new = ChainState(FireflyState(moved.state.position), bright.words)
        return KernelStep(new, stats, jnp.int32(moved.outcome), moved.estimate.gradient)

    def light_all(
        self,
        source: ResidentRows,
        words: UInt32[Array, " words"],
        position: Float[Array, " d"],
        ring: Ring,
    ) -> UInt32[Array, " words"]:
        """Draw z for every row."""
        return self.resample(source, words, position, ring, self.n_rows)

    def evaluate(
        self, position: Float[Array, " d"], bright: BrightRows, source: ResidentRows
    ) -> Estimate:
        """Return −log p(θ, z), up to a constant, and its gradient in θ, from the bright rows."""

        def add_chunk(chunk: Array, total: Sum) -> Sum:
            ranks = chunk * _BRIGHT_CHUNK + jnp.arange(_BRIGHT_CHUNK)
            used = ranks < bright.count
            rows = source.take(jnp.where(used, bright.rows(ranks), 0))
            return total.plus(self.bound.bright_sum(position, rows, used))

        zero = (jnp.zeros((), position.dtype), jnp.zeros_like(position))
        total = lax.fori_loop(0, -(-bright.count // _BRIGHT_CHUNK), add_chunk, Sum(zero, zero))
        known, gradient = self.bound.known(position)
        potential = Sum(total.high[0], total.low[0] + known)
        return Estimate(total.rounded()[1] + gradient, bright.count, Memory(), potential=potential)

    def resample(
        self,
        source: ResidentRows,
        words: UInt32[Array, " words"],
        position: Float[Array, " d"],
        ring: Ring,
        size: int,
    ) -> UInt32[Array, " words"]:
        """Redraw the brightness of `size` rows from `ring.start` on, in chunks of whole words."""
        n_rows = self.n_rows
        readable = min(_RING_CHUNK, n_rows)

        def draw_chunk(
            carry: tuple[Array, Array, Array, Array],
        ) -> tuple[Array, Array, Array, Array]:
            chunk, row, left, words = carry
            first = row // WORD * WORD
            readable_from = jnp.minimum(first, n_rows - readable)
            rows = source.neighbours(readable_from, readable)
            chance = jnp.pad(self.bound.chance_bright(position, rows), (0, _RING_CHUNK - readable))
            chance = jnp.roll(chance, readable_from - first)
            bright = (
                _fine_uniform(jax.random.fold_in(ring.key, chunk), _RING_CHUNK, chance.dtype)
                < chance
            )
            end = jnp.minimum(jnp.minimum(row + left, first + _RING_CHUNK), n_rows)
            numbers = first + jnp.arange(_RING_CHUNK)
            drawn = (numbers >= row) & (numbers < end)
            old = lax.dynamic_slice_in_dim(words, first // WORD, _RING_CHUNK // WORD)
            new = (old & ~pack(drawn)) | pack(drawn & bright)
            words = lax.dynamic_update_slice_in_dim(words, new, first // WORD, 0)
            return chunk + 1, end % n_rows, left - (end - row), words

        carry = (jnp.int32(0), ring.start, jnp.int32(size), words)
        return lax.while_loop(lambda carry: carry[2] > 0, draw_chunk, carry)[3]

    def _chain_by_chain(self, method: Callable[..., Any], source: ResidentRows, *args: Any) -> Any:
        """Return `method(self, source, *args)`, under vmap computed for one chain after another.

        Each chain then pays for its own bright rows, not for the largest number in any chain.
        """
        arrays, static = eqx.partition((self, source), eqx.is_array)

        @sequential_vmap
        def of_one_chain(arrays, args):  # type: ignore[no-untyped-def]
            kernel, source = eqx.combine(arrays, static)
            return method(kernel, source, *args)

        return of_one_chain(arrays, args)


def _in_memory(source: AbstractRows) -> ResidentRows:
    assert isinstance(source, ResidentRows), "checked when the method was prepared"
    return source


def _fine_uniform(key: PRNGKeyArray, count: int, dtype: Any) -> Float[Array, " count"]:
    """Return (w + v)/2³² with one random word w per entry and one v ∈ [0, 1] for all.

    This resolution is needed, because most chances of being bright are far below 2⁻²⁴. v matters
    only for a row whose chance lies between w/2³² and (w + 1)/2³². The probability that v matters
    for two rows of a chunk is 2⁻⁴⁷.
    """
    words = random_words(key, (count // 2 + 1,)).reshape(-1).astype(dtype)
    return (words[:count] + words[count] * 2.0**-32) * 2.0**-32
