"""A size that follows the noise measured during the run: more rows where the gradient is noisier.

The contrast δ = Σ ± w_i r_i of n independent draws, even-numbered minus odd-numbered, has the
covariance of the estimate: E δδᵀ = Cov(∇f̂). Every step makes at least m draws. For these m draws
m‖Cᵀδ‖²/d is an unbiased estimate of s², the noise of one draw per coordinate of the geometry C,
at almost no cost. A running mean of it over a few steps sets the number of draws of the next
step:

    n = ⌈ s² / v ⌉,   at least m and at most `max_size`,   v the target noise per coordinate

All draws come from a stream.
The m draws of every step are known ahead. Further draws come from a *reserve*, a sequence of
draws that the steps of one block share. Each step takes the next draws of the reserve, and the
chain's memory counts the draws used. When the reserve runs out, n is limited to the remaining
draws. For rows that are not in memory, the reserve is gathered with its block, and is smaller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from .._core.arrays import AbstractLinearMap, Scalar, Vector
from .._core.errors import check_int, check_number
from .._core.random import key_of, random_words
from .._rows.access import AbstractRows
from .._rows.law import AbstractStream, Batch
from .selection import (
    NO_ROWS,
    AbstractSelection,
    Estimate,
    Fixed,
    GradientAt,
    SizeChoice,
    SubsampleContext,
    SuppliedRows,
    WithReplacement,
    alternating_signs,
)

_STEPS_REMEMBERED = 8
_CHUNK = 64  # draws of a supplied reserve per loop iteration
_RESERVE_FACTOR = 4  # reserve size as a multiple of the least number of draws of a block


class Reserve(eqx.Module):
    """Draws of the stream that the steps of one block share. Each step gets the same reserve."""

    words: UInt32[Any, "*k 2"]  # The key of the sequence
    size: Int[Any, "*k"]  # The length of the sequence
    batch: Batch | None = None
    """The rows, if the host has gathered them. Their leading axis has length 1."""


class WithReserve(eqx.Module):
    """The rows that each step always reads, as draws or gathered, and the reserve."""

    base: Any
    reserve: Reserve


class SuppliedWords(eqx.Module):
    """The random words of the rows of several steps, and of the reserve that they share."""

    base: UInt32[Any, "*k 2 n"]
    reserve: UInt32[Any, "*b r 2"]
    key: UInt32[Any, "*b 2"]  # The key of the reserve


class NoiseMeasurement(eqx.Module):
    """The noise that one chain has measured, and the part of the reserve that it has used."""

    of_one_draw: Scalar  # s², a running mean over the last steps
    sum_of_one_draw: Scalar  # Σ over all steps of the per-step estimates of s²
    sum_by_parameter: Vector  # Σ over all steps of (CCᵀ noise)_j² at the size of the step
    steps: Int[Array, ""]
    reserve_words: UInt32[Array, " 2"]  # The key of the last used reserve
    reserve_used: Int[Array, ""]  # Number of used draws of that reserve


class MeasuredSelection(AbstractSelection):
    """Draws with replacement, whose number follows the measured noise.

    The reserve is drawn from rows in memory, inside the step.
    """

    base: Any  # Draws the rows that each step always reads, at least `base.size` rows
    geometry: AbstractLinearMap
    noise: Scalar  # v, the target noise per coordinate
    largest: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    @property
    def most_rows(self) -> int:
        return self.largest

    @property
    def rows_ahead(self) -> int:
        return self.base.size

    def draw(self, key: PRNGKeyArray, steps: int) -> Any:
        base_key, reserve_key = jax.random.split(key)
        most_further = self.largest - self.base.size
        size = max(_RESERVE_FACTOR * steps * self.base.draws, most_further)
        words = jnp.broadcast_to(random_words(reserve_key, ()), (steps, 2))
        reserve = Reserve(words, jnp.full(steps, size, jnp.int32))
        return WithReserve(self.base.draw(base_key, steps), reserve)

    def gather(self, drawn: WithReserve, rows: AbstractRows) -> WithReserve:
        return WithReserve(rows.gather(drawn.base), drawn.reserve)

    def start(self, gathered: WithReserve) -> NoiseMeasurement:
        zero = jnp.zeros(self.dim, self.noise.dtype)
        none = jnp.int32(0)
        return NoiseMeasurement(
            self.noise * (self.base.size - self.base.n_certain),
            zero[0],
            zero,
            none,
            jnp.zeros_like(gathered.reserve.words),
            none,
        )

    def estimate(self, at: GradientAt, gathered: WithReserve) -> Estimate:
        batch, reserve = at.rows.complete(gathered.base), gathered.reserve
        measured, certain = at.carried.selection, self.base.n_certain
        draws = self.base.size - certain
        same_reserve = jnp.all(measured.reserve_words == reserve.words)
        used = jnp.where(same_reserve, measured.reserve_used, 0)
        wanted = jnp.ceil(measured.of_one_draw / self.noise)
        further = jnp.clip(wanted, draws, self.largest - certain).astype(jnp.int32) - draws
        further = jnp.minimum(further, reserve.size - used)
        total = draws + further
        share = (draws / total).astype(at.position.dtype)
        is_certain = jnp.arange(self.base.size) < certain

        def residual_sum(factors: Float[Array, " n"]) -> Vector:
            return at.residual_sum(batch.with_weights(batch.weights * factors))

        base_sum = residual_sum(jnp.where(is_certain, 1, share))
        contrast = self.geometry.pull(
            residual_sum(alternating_signs(self.base.size, certain, at.position.dtype))
        )
        if reserve.batch is None:
            key = key_of(reserve.words)
            further_sum = at.sum_of_draws(self.base.stream, key, further, total, first=used)
        else:

            def draws_from(start: Array) -> Batch:
                return jax.tree.map(
                    lambda leaf: lax.dynamic_slice_in_dim(leaf, start, _CHUNK), reserve.batch
                )

            further_sum = at.sum_in_chunks(draws_from, _CHUNK, further, total, used)
        value = at.known + base_sum + further_sum
        now = draws * jnp.mean(contrast**2)
        updated = NoiseMeasurement(
            measured.of_one_draw + (now - measured.of_one_draw) / _STEPS_REMEMBERED,
            measured.sum_of_one_draw + now,
            measured.sum_by_parameter + share * self.geometry.push(contrast) ** 2,
            measured.steps + 1,
            reserve.words,
            used + further,
        )
        learned = at.after(batch, at.residuals(batch), updated)
        stats = {"grad_noise": share * jnp.sum(contrast**2)}
        return Estimate(value, certain + total, learned, batch, stats=stats)

    def supplied(self) -> SuppliedMeasured:
        """The selection for steps whose rows, reserve included, `gather_on_host` has gathered."""
        base: WithReplacement = self.base
        return SuppliedMeasured(base.supplied(), self.geometry, self.noise, self.largest, self.dim)

    def gather_on_host(self, rows: AbstractRows) -> Callable[[SuppliedWords], WithReserve]:
        """A function that returns the rows of each step, and the reserve of each block."""
        gather_base = self.base.gather_on_host(rows)
        gather_reserve = self.base.stream.batches_on_host(rows, NO_ROWS)

        def batch(words: SuppliedWords) -> WithReserve:
            reserve = gather_reserve(words.reserve)
            n_draws = reserve.weights.shape[-1]
            reserve = reserve.with_weights(reserve.weights * n_draws)  # 1/p
            size = np.full(words.key.shape[:-1], n_draws - _CHUNK, np.int32)
            return WithReserve(gather_base(words.base), Reserve(words.key, size, reserve))

        return batch


class SuppliedMeasured(MeasuredSelection):
    """All rows are gathered before the steps, those of the reserve once per block."""

    @property
    def rows_ahead(self) -> int:
        return 2 * self.base.size

    def draw(self, key: PRNGKeyArray, steps: int) -> SuppliedWords:
        base: SuppliedRows = self.base
        base_key, reserve_key = jax.random.split(key)
        own = random_words(reserve_key, ())
        count = max(steps * base.size, self.largest - base.size) + _CHUNK
        reserve = random_words(key_of(own), (1, count))
        return SuppliedWords(base.draw(base_key, steps), reserve, own[None])

    def gather(self, drawn: Any, rows: AbstractRows) -> Any:
        raise AssertionError("the host gathers these rows")


@dataclasses.dataclass(frozen=True)
class TargetNoise(SizeChoice):
    """A number of rows that keeps the measured noise at a target.

    The statistics of the draws contain `grad_noise`, the measured trace of Cov(Cᵀ∇f̂), and
    `batch_size`.

    **Arguments:**

    - `size`: the least number of rows per step.
    - `noise`: v, the target noise per coordinate of the geometry.
    - `max_size`: the largest number of rows per step; the number of rows of the data by default.
    """

    bias = "Unbiased at any n, because n depends on draws of earlier steps only."

    size: int
    noise: float
    max_size: int | None = None

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
            largest=min(self.max_size or posterior.n_rows, posterior.n_rows),
            dim=posterior.dim,
        )
