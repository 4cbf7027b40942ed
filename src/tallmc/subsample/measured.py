"""A size that follows the noise measured during the run: more rows where the gradient is noisier.

The contrast δ = Σ ± w_i r_i of n independent draws, even-numbered minus odd-numbered, has the
covariance of the estimate: E δδᵀ = Cov(∇f̂). Every step makes at least m draws. For these m draws
m‖Cᵀδ‖²/d is an unbiased estimate of s², the noise of one draw per coordinate of the geometry C, at
almost no cost. A running mean of it over a few steps sets the number of draws of the next step:

    n = ⌈ s² / v ⌉,   at least m and at most `max_size`,   v the target noise per coordinate

Unbiased at any n, because n depends on draws of earlier steps only. All draws come from a stream.
The m draws of every step are known ahead. Further draws come from a *reserve*, a sequence of draws
that the steps of one block share. Each step takes the next draws of the reserve, and the chain's
memory counts the draws used. When the reserve runs out, n is limited to the remaining draws.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from ..anchor.anchor import AnchorLevel
from ..core.errors import check_int, check_number
from ..core.linear_maps import AbstractLinearMap
from ..core.random import key_of, random_words
from ..gradient.base import AbstractGradient
from ..rows.base import AbstractRows, RowAccess
from ..rows.batch import Batch, RowDraws
from ..rows.stream import AbstractStream
from .base import SizeChoice, SubsampleContext
from .replacement import WithReplacement, sum_of_draws
from .selection import AbstractSelection, Estimate, Memory, Transition
from .size import Fixed

_STEPS_REMEMBERED = 8
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


class MeasuredBatch(eqx.Module):
    """`MeasuredDraws` with the rows of `base` gathered."""

    base: Batch
    reserve: Reserve


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


class MeasuredSelection(AbstractSelection):
    """Draws with replacement, whose number follows the measured noise."""

    base: WithReplacement
    """Draws the rows that each step always reads."""
    geometry: AbstractLinearMap
    noise: Float[Array, ""]
    """v, the target noise per coordinate."""
    largest: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    @property
    def rows_per_step(self) -> None:
        return None

    @property
    def rows_ahead(self) -> int:
        return self.base.size

    @property
    def most_rows(self) -> int:
        return self.largest

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

    def start(self, gathered: MeasuredBatch) -> NoiseMeasurement:
        zero = jnp.zeros(self.dim, self.noise.dtype)
        none = jnp.int32(0)
        return NoiseMeasurement(
            self.noise * self.base.draws,
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
        measured, draws = memory.selection, self.base.draws
        certain = self.base.certain.shape[0]
        same_reserve = jnp.all(measured.reserve_words == reserve.words)
        used = jnp.where(same_reserve, measured.reserve_used, 0)
        wanted = jnp.ceil(measured.of_one_draw / self.noise)
        further = jnp.clip(wanted, draws, self.largest - certain).astype(jnp.int32) - draws
        further = jnp.minimum(further, reserve.size - used)
        total = draws + further
        share = draws / total.astype(position.dtype)

        def scaled_weights(draw_factor: Array, certain_factor: float) -> Float[Array, " n"]:
            """The batch's weights, scaled separately for its draws and its certain rows."""
            return jnp.concatenate(
                [certain_factor * batch.weights[:certain], draw_factor * batch.weights[certain:]]
            )

        def residual_sum(weights: Float[Array, " n"]) -> Float[Array, " d"]:
            return gradient.residual_sum(position, batch.with_weights(weights), memory.gradient)

        signs = _signs(draws, position.dtype)
        base_sum, contrast = (
            residual_sum(scaled_weights(share, 1.0)),
            residual_sum(scaled_weights(signs, 0.0)),
        )
        further_sum = sum_of_draws(
            self.base.stream,
            gradient,
            memory.gradient,
            position,
            further,
            total,
            key_of(reserve.words),
            source,
            first=used,
        )
        value = gradient.known(position, memory.gradient) + base_sum + further_sum
        contrast = self.geometry.pull(contrast)
        residuals = gradient.residuals(position, batch.rows, batch.indices, memory.gradient)
        updated = self._learn(measured, contrast, share, reserve.words, used + further)
        learned = Memory(gradient.learn(memory.gradient, batch, residuals), updated, memory.noise)
        stats = {"grad_noise": share * jnp.sum(contrast**2)}
        return Estimate(value, certain + total, learned, batch, stats=stats)

    def _learn(
        self,
        measured: NoiseMeasurement,
        contrast: Float[Array, " d"],
        share: Float[Array, ""],
        reserve_words: UInt32[Array, " 2"],
        reserve_used: Int[Array, ""],
    ) -> NoiseMeasurement:
        now = self.base.draws * jnp.mean(contrast**2)
        by_parameter = share * self.geometry.push(contrast) ** 2
        return NoiseMeasurement(
            measured.of_one_draw + (now - measured.of_one_draw) / _STEPS_REMEMBERED,
            measured.sum_of_one_draw + now,
            measured.sum_by_parameter + by_parameter,
            measured.steps + 1,
            reserve_words,
            reserve_used,
        )


def _signs(draws: int, dtype: Any) -> Float[Array, " n"]:
    """Alternating ±1. For an odd number the last sign is 0, and the others are scaled up."""
    signs = np.resize([1.0, -1.0], draws)
    signs[draws - draws % 2 :] = 0
    return jnp.asarray(signs * np.sqrt(draws / (draws - draws % 2)), dtype)


@dataclasses.dataclass(frozen=True)
class Measured(SizeChoice):
    """A number of rows that keeps the measured noise at a target.

    The statistics of the draws contain `grad_noise`, the measured trace of Cov(Cᵀ∇f̂), and
    `batch_size`.

    **Arguments:**

    - `size`: the least number of rows per step.
    - `noise`: v, the target noise per coordinate of the geometry.
    - `max_size`: the largest number of rows per step; the number of rows of the data by default.

    **Raises:** `InvalidInput` if `size` is less than 2, `noise` is not positive or `max_size` is
    less than `size`.

    >>> Measured(size=64, noise=0.03).max_size is None
    True
    """

    size: int
    noise: float
    max_size: int | None = None
    needs = AnchorLevel.NOTHING
    row_access = RowAccess.STREAM

    def __post_init__(self) -> None:
        check_int("size", self.size, 2)
        check_number("noise", self.noise, 0, low_open=True)
        if self.max_size is not None:
            check_int("max_size", self.max_size, self.size)

    def select(
        self, stream: AbstractStream, context: SubsampleContext, certain: np.ndarray
    ) -> MeasuredSelection:
        posterior = context.posterior
        return MeasuredSelection(
            base=Fixed(self.size).select(stream, context, certain),
            geometry=context.geometry,
            noise=jnp.asarray(self.noise, posterior.dtype),
            largest=posterior.n_rows
            if self.max_size is None
            else min(self.max_size, posterior.n_rows),
            dim=posterior.dim,
        )
