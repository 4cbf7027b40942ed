"""A size that follows the noise measured during the run: more rows where the gradient is noisier.

The contrast δ = Σ ± w_i r_i of n independent draws, even-numbered minus odd-numbered, has the
covariance of the estimate: E δδᵀ = Cov(∇f̂). Every step makes at least m draws. For these m draws
m‖Cᵀδ‖²/d is an unbiased estimate of s², the noise of one draw per coordinate of the geometry C, at
almost no cost. A running mean of it over a few steps sets the number of draws of the next step:

    n = ⌈ s² / v ⌉,   at least m and at most `max_size`,   v the target noise per coordinate

Unbiased at any n, because n depends on draws of earlier steps only. All draws come from a stream.
The m draws of every step are known ahead. Further draws come from a *reserve*, a sequence of draws
that the steps of one block share. Each step takes the next draws of the reserve, and the chain's
memory counts the draws used. When the reserve runs out, n is limited to the remaining draws. For
rows that are not in memory, the reserve is gathered with its block, and is smaller.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from ..core.linear_maps import AbstractLinearMap
from ..core.random import key_of, random_words
from ..gradient.base import AbstractGradient
from ..rows.base import AbstractRows
from ..rows.batch import Batch, RowDraws
from .replacement import NO_ROWS, SuppliedRows, WithReplacement, alternating_signs, sum_of_draws
from .selection import AbstractSelection, Estimate, Memory, Transition

_STEPS_REMEMBERED = 8
_CHUNK = 64  # draws of a supplied reserve per loop iteration
_RESERVE_FACTOR = 4  # reserve size as a multiple of the least number of draws of a block


class Reserve(eqx.Module):
    """Draws of the stream that the steps of one block share. Each step gets the same reserve."""

    words: UInt32[Array, "*k 2"]
    """The key of the sequence."""
    size: Int[Array, "*k"]
    """The length of the sequence."""


class MeasuredDraws(eqx.Module):
    """The draws of several steps: the rows that each step always reads, and the reserve."""

    base: RowDraws
    reserve: Reserve


class SuppliedWords(eqx.Module):
    """The random words of the rows of several steps, and of the reserve that they share."""

    base: UInt32[Any, "*k n 2"]
    reserve: UInt32[Any, "*b r 2"]
    key: UInt32[Any, "*b 2"]
    """The key of the reserve."""


class SuppliedReserve(eqx.Module):
    """The rows of a reserve. Its leading axis has length 1: all steps share it."""

    words: UInt32[Any, "*k 2"]
    size: Int[Any, "*k"]
    batch: Batch


class MeasuredBatch(eqx.Module):
    """The gathered rows of each step, and the reserve."""

    base: Batch
    reserve: Reserve | SuppliedReserve


class FurtherDraws(NamedTuple):
    """The draws of a reserve that a step uses."""

    first: Int[Array, ""]
    number: Int[Array, ""]
    total: Int[Array, ""]
    """All draws of the step."""


class NoiseMeasurement(eqx.Module):
    """The noise that one chain has measured, and the part of the reserve that it has used."""

    of_one_draw: Float[Array, ""]
    """s², a running mean over the last steps."""
    sum_of_one_draw: Float[Array, ""]
    """Σ over all steps of the per-step estimates of s²."""
    sum_by_parameter: Float[Array, " d"]
    """Σ over all steps of (CCᵀ noise)_j² at the size of the step."""
    steps: Int[Array, ""]
    reserve_words: UInt32[Array, " 2"]
    """The key of the last used reserve."""
    reserve_used: Int[Array, ""]
    """Number of used draws of that reserve."""


class AbstractMeasuredSelection(AbstractSelection):
    """Draws with replacement, whose number follows the measured noise."""

    geometry: eqx.AbstractVar[AbstractLinearMap]
    noise: eqx.AbstractVar[Float[Array, ""]]
    """v, the target noise per coordinate."""
    largest: eqx.AbstractVar[int]
    dim: eqx.AbstractVar[int]

    @property
    @abc.abstractmethod
    def least(self) -> int:
        """The number of rows that each step reads at least."""

    @property
    @abc.abstractmethod
    def n_certain(self) -> int | Int[Array, ""]:
        """The number of certain rows, which come first in each batch."""

    @abc.abstractmethod
    def further_sum(
        self,
        gradient: AbstractGradient,
        learned: Any,
        position: Float[Array, " d"],
        further: FurtherDraws,
        reserve: Any,
        source: AbstractRows,
    ) -> Float[Array, " d"]:
        """The sum over further draws from the reserve."""

    @property
    def rows_per_step(self) -> None:
        return None

    @property
    def most_rows(self) -> int:
        return self.largest

    def start(self, gathered: MeasuredBatch) -> NoiseMeasurement:
        zero = jnp.zeros(self.dim, self.noise.dtype)
        none = jnp.int32(0)
        return NoiseMeasurement(
            self.noise * (self.least - self.n_certain),
            zero[0],
            zero,
            none,
            jnp.zeros_like(gathered.reserve.words),
            none,
        )

    def estimate(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        memory: Memory,
        gathered: MeasuredBatch,
        source: AbstractRows,
        transition: Transition | None,
    ) -> Estimate:
        batch, reserve = source.complete(gathered.base), gathered.reserve
        measured, certain = memory.selection, self.n_certain
        draws = self.least - certain
        same_reserve = jnp.all(measured.reserve_words == reserve.words)
        used = jnp.where(same_reserve, measured.reserve_used, 0)
        wanted = jnp.ceil(measured.of_one_draw / self.noise)
        further = jnp.clip(wanted, draws, self.largest - certain).astype(jnp.int32) - draws
        further = jnp.minimum(further, reserve.size - used)
        total = draws + further
        share = (draws / total).astype(position.dtype)
        is_certain = jnp.arange(self.least) < certain

        def residual_sum(factors: Float[Array, " n"]) -> Float[Array, " d"]:
            weighted = batch.with_weights(batch.weights * factors)
            return gradient.residual_sum(position, weighted, memory.gradient)

        base_sum = residual_sum(jnp.where(is_certain, 1, share))
        contrast = self.geometry.pull(
            residual_sum(alternating_signs(self.least, certain, position.dtype))
        )
        further_sum = self.further_sum(
            gradient, memory.gradient, position, FurtherDraws(used, further, total), reserve, source
        )
        value = gradient.known(position, memory.gradient) + base_sum + further_sum
        residuals = gradient.residuals(position, batch.rows, batch.indices, memory.gradient)
        updated = self._learn(measured, contrast, draws, share, reserve.words, used + further)
        learned = Memory(gradient.learn(memory.gradient, batch, residuals), updated, memory.noise)
        stats = {"grad_noise": share * jnp.sum(contrast**2)}
        return Estimate(value, certain + total, learned, batch, stats=stats)

    def _learn(
        self,
        measured: NoiseMeasurement,
        contrast: Float[Array, " d"],
        draws: Any,
        share: Float[Array, ""],
        reserve_words: UInt32[Array, " 2"],
        reserve_used: Int[Array, ""],
    ) -> NoiseMeasurement:
        now = draws * jnp.mean(contrast**2)
        by_parameter = share * self.geometry.push(contrast) ** 2
        return NoiseMeasurement(
            measured.of_one_draw + (now - measured.of_one_draw) / _STEPS_REMEMBERED,
            measured.sum_of_one_draw + now,
            measured.sum_by_parameter + by_parameter,
            measured.steps + 1,
            reserve_words,
            reserve_used,
        )


class MeasuredSelection(AbstractMeasuredSelection):
    """The reserve is drawn from rows in memory, inside the step."""

    base: WithReplacement
    """Draws the rows that each step always reads."""
    geometry: AbstractLinearMap
    noise: Float[Array, ""]
    largest: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    @property
    def least(self) -> int:
        return self.base.size

    @property
    def n_certain(self) -> int:
        return self.base.certain.shape[0]

    @property
    def rows_ahead(self) -> int:
        return self.base.size

    def draw(self, key: PRNGKeyArray, steps: int) -> MeasuredDraws:
        base_key, reserve_key = jax.random.split(key)
        most_further = self.largest - self.base.size
        size = max(_RESERVE_FACTOR * steps * self.base.draws, most_further)
        words = jnp.broadcast_to(random_words(reserve_key, ()), (steps, 2))
        return MeasuredDraws(
            self.base.draw(base_key, steps), Reserve(words, jnp.full(steps, size, jnp.int32))
        )

    def gather(self, drawn: MeasuredDraws, source: AbstractRows) -> MeasuredBatch:
        return MeasuredBatch(source.gather(drawn.base), drawn.reserve)

    def further_sum(
        self,
        gradient: AbstractGradient,
        learned: Any,
        position: Float[Array, " d"],
        further: FurtherDraws,
        reserve: Reserve,
        source: AbstractRows,
    ) -> Float[Array, " d"]:
        return sum_of_draws(
            self.base.stream,
            gradient,
            learned,
            position,
            further.number,
            further.total,
            key_of(reserve.words),
            source,
            first=further.first,
        )

    def supplied(self) -> SuppliedMeasured:
        """The selection for steps whose rows, reserve included, `gather_on_host` has gathered."""
        return SuppliedMeasured(
            base=self.base.supplied(),
            geometry=self.geometry,
            noise=self.noise,
            largest=self.largest,
            dim=self.dim,
        )

    def gather_on_host(self, source: AbstractRows) -> Callable[[SuppliedWords], MeasuredBatch]:
        """A function that returns the rows of each step, and the reserve of each block."""
        gather_base = self.base.gather_on_host(source)
        gather_reserve = self.base.stream.batches_on_host(source, NO_ROWS)

        def batch(words: SuppliedWords) -> MeasuredBatch:
            reserve = gather_reserve(words.reserve)
            n_draws = reserve.weights.shape[-1]
            reserve = reserve.with_weights(reserve.weights * n_draws)  # 1/p
            size = np.full(words.key.shape[:-1], n_draws - _CHUNK, np.int32)
            return MeasuredBatch(gather_base(words.base), SuppliedReserve(words.key, size, reserve))

        return batch


class SuppliedMeasured(AbstractMeasuredSelection):
    """All rows are gathered before the steps, those of the reserve once per block."""

    base: SuppliedRows
    geometry: AbstractLinearMap
    noise: Float[Array, ""]
    largest: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    @property
    def least(self) -> int:
        return self.base.size

    @property
    def n_certain(self) -> Int[Array, ""]:
        return self.base.n_certain

    @property
    def rows_ahead(self) -> int:
        return 2 * self.base.size

    def draw(self, key: PRNGKeyArray, steps: int) -> SuppliedWords:
        base_key, reserve_key = jax.random.split(key)
        own = random_words(reserve_key, ())
        count = max(steps * self.base.size, self.largest - self.base.size) + _CHUNK
        return SuppliedWords(
            self.base.draw(base_key, steps), random_words(key_of(own), (1, count)), own[None]
        )

    def gather(self, drawn: Any, source: AbstractRows) -> Any:
        raise AssertionError("the host gathers these rows")

    def further_sum(
        self,
        gradient: AbstractGradient,
        learned: Any,
        position: Float[Array, " d"],
        further: FurtherDraws,
        reserve: SuppliedReserve,
        source: AbstractRows,
    ) -> Float[Array, " d"]:
        def add_chunk(chunk: Array, so_far: Float[Array, " d"]) -> Float[Array, " d"]:
            part = jax.tree.map(
                lambda leaf: lax.dynamic_slice_in_dim(leaf, further.first + chunk * _CHUNK, _CHUNK),
                reserve.batch,
            )
            counted = chunk * _CHUNK + jnp.arange(_CHUNK) < further.number
            weighted = part.with_weights(jnp.where(counted, part.weights / further.total, 0))
            return so_far + gradient.residual_sum(position, source.complete(weighted), learned)

        chunks = (further.number + _CHUNK - 1) // _CHUNK
        return lax.fori_loop(0, chunks, add_chunk, jnp.zeros_like(position))
