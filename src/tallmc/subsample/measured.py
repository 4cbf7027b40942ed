"""A size that follows the noise measured on the run: many rows where the gradient is noisy, few where it is not.

Of n independent draws, those with even numbers less those with odd ones, δ = Σ ± w_i r_i, have the estimate's own covariance:
E δδᵀ = Cov(∇f̂). So m‖Cᵀδ‖²/d, for the m draws that every step makes, is an unbiased measure of s², the noise of one draw per
coordinate of the geometry C, and costs next to nothing. A running mean of it, forgotten over a few steps, says how many draws the
next step makes:

    n = ⌈ s² / v ⌉,   at least m and at most `max_size`,                       v the noise per coordinate that is aimed at

Unbiased at any n, since n depends on draws of earlier steps only. The m draws are known ahead and gathered in blocks; those
beyond are drawn when they are needed, without another compilation.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from .._anchor import Needs
from .._errors import check_int, check_number
from .._random import key_of, random_words
from ..geometry import AbstractGeometry
from ..gradient.base import AbstractGradient, Batch
from .base import Setting, SizeChoice
from .law import AbstractLaw
from .replacement import WithReplacement, sum_of_draws
from .selection import AbstractSelection, Estimate, Memory, Picks, Transition
from .size import Fixed

_STEPS_REMEMBERED = 8


class Measure(eqx.Module):
    """The noise that one chain has seen."""

    of_one_draw: Float[Array, ""]
    """s², a running mean over the last steps."""
    sum_of_one_draw: Float[Array, ""]
    """Σ over all steps of what it is a mean of."""
    sum_by_parameter: Float[Array, " d"]
    """Σ over all steps of (CCᵀ noise)_j² at the size that the step had."""
    steps: Int[Array, ""]


class MeasuredSelection(AbstractSelection):
    base: WithReplacement
    """The rows that every step sees."""
    geometry: AbstractGeometry
    noise: Float[Array, ""]
    """v."""
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

    def supply(self, key: PRNGKeyArray, steps: int) -> tuple[Picks, UInt32[Array, "steps 2"]]:
        ahead, further = jax.random.split(key)
        return self.base.supply(ahead, steps), random_words(further, (steps,))

    def start(self, supply: tuple[Batch, UInt32[Array, " 2"]]) -> Measure:
        zero = jnp.zeros(self.dim, self.noise.dtype)
        return Measure(self.noise * self.base.draws, zero[0], zero, jnp.int32(0))

    def estimate(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        memory: Memory,
        supply: tuple[Batch, UInt32[Array, " 2"]],
        transition: Transition | None,
    ) -> Estimate:
        batch, words = supply
        measure, draws = memory.selection, self.base.draws
        certain = self.base.certain.shape[0]
        wanted = jnp.ceil(measure.of_one_draw / self.noise)
        total = jnp.clip(wanted, draws, self.largest - certain).astype(jnp.int32)
        share = draws / total.astype(position.dtype)

        def of_draws(factor: Array, of_certain: float) -> Float[Array, " n"]:
            """The batch's weights, those of its draws times `factor`."""
            return jnp.concatenate([of_certain * batch.weights[:certain], factor * batch.weights[certain:]])

        def residual_sum(weights: Float[Array, " n"]) -> Float[Array, " d"]:
            return gradient.residual_sum(position, dataclasses.replace(batch, weights=weights), memory.gradient)

        signs = _signs(draws, position.dtype)
        known_rows, contrast = residual_sum(of_draws(share, 1.0)), residual_sum(of_draws(signs, 0.0))
        further = sum_of_draws(self.base.law, gradient, memory.gradient, position, total - draws, total, key_of(words))
        value = gradient.known(position, memory.gradient) + known_rows + further
        contrast = self.geometry.pull(contrast)
        residuals = gradient.residuals(position, batch.rows, batch.indices, memory.gradient)
        learned = Memory(gradient.learn(memory.gradient, batch, residuals), self._learn(measure, contrast, share), memory.noise)
        stats = {"grad_noise": share * jnp.sum(contrast**2)}
        return Estimate(value, certain + total, learned, batch, stats=stats)

    def _learn(self, measure: Measure, contrast: Float[Array, " d"], share: Float[Array, ""]) -> Measure:
        now = self.base.draws * jnp.mean(contrast**2)
        running = measure.of_one_draw + (now - measure.of_one_draw) / _STEPS_REMEMBERED
        by_parameter = share * self.geometry.push(contrast) ** 2
        return Measure(running, measure.sum_of_one_draw + now, measure.sum_by_parameter + by_parameter, measure.steps + 1)


def _signs(draws: int, dtype: Any) -> Float[Array, " n"]:
    """±1 in turn; of an odd number the last is left out, and the others make up for it."""
    signs = np.resize([1.0, -1.0], draws)
    signs[draws - draws % 2 :] = 0
    return jnp.asarray(signs * np.sqrt(draws / (draws - draws % 2)), dtype)


@dataclasses.dataclass(frozen=True)
class Measured(SizeChoice):
    """At least `size` rows, and as many more as keep the measured noise at `noise` (per coordinate of the geometry), at most
    `max_size`.

    The statistics of the draws have `grad_noise`, the measured trace of Cov(Cᵀ∇f̂), and `batch_size`.

    >>> Measured(size=64, noise=0.03).max_size is None        # all rows' worth of draws
    True
    """

    size: int
    noise: float
    max_size: int | None = None
    needs = Needs.NOTHING

    def __post_init__(self) -> None:
        check_int("size", self.size, 2)
        check_number("noise", self.noise, 0, low_open=True)
        if self.max_size is not None:
            check_int("max_size", self.max_size, self.size)

    def select(self, law: AbstractLaw, setting: Setting, certain: np.ndarray) -> MeasuredSelection:
        posterior = setting.posterior
        return MeasuredSelection(
            base=Fixed(self.size).select(law, setting, certain),
            geometry=setting.geometry,
            noise=jnp.asarray(self.noise, posterior.dtype),
            largest=posterior.n_rows if self.max_size is None else min(self.max_size, posterior.n_rows),
            dim=posterior.dim,
        )
