"""Gradient noise from the errors of earlier estimates, with a pass over all rows every m steps.

The pass computes Σ ∇f_i at ω = θ. From then on the SVRG estimate, whose noise is small, serves as
∇f(θ): ∇f₀(θ) + Σ ∇f_i(ω) + Σ_{i∈S} w_i [∇f_i(θ) − ∇f_i(ω)]. V is the running average, over about m
steps, of the squared errors of the estimates that were used. Only for the simple estimator.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..core.linear_maps import AbstractLinearMap
from ..gradient.base import AbstractGradient
from ..gradient.renewal import AbstractPeriodic
from ..models.base import AbstractModel
from ..rows.base import AbstractRows, RowBlock
from ..rows.sums import Sum
from ..subsample.selection import Estimate, Memory
from .base import AbstractNoiseEstimate, Shape, second_moment


class CalibrationMemory(eqx.Module):
    """The position and the result of the last pass, and the noise seen so far."""

    centre: Float[Array, "*chains d"]
    """ω, the position of the last pass."""
    row_sum: Float[Array, "*chains d"]
    """Σ ∇f_i(ω) over all rows."""
    covariance: Float[Array, ...]
    """V, the running average of the squared errors of the estimates."""


class Calibrated(AbstractNoiseEstimate, AbstractPeriodic):
    """The noise estimated from the errors of earlier estimates."""

    model: AbstractModel
    geometry: AbstractLinearMap
    shape: Shape = eqx.field(static=True)
    every: int = eqx.field(static=True)
    """m, the number of steps between passes."""
    size: int = eqx.field(static=True)
    """Rows per step."""

    def start(self, positions: Float[Array, "chains d"], source: AbstractRows) -> CalibrationMemory:
        """The initial covariance is that of `size` rows drawn uniformly."""
        width, n_rows = self.model.width(source), source.n_rows
        sums, covariance = source.reduce(
            _moments, self, positions, n_rows, width=width, finish=_uniform_noise
        )
        return CalibrationMemory(positions, sums, covariance)

    def renew(
        self,
        memory: CalibrationMemory,
        positions: Float[Array, "chains d"],
        row_sums: Float[Array, "chains d"],
    ) -> CalibrationMemory:
        return CalibrationMemory(positions, row_sums, memory.covariance)

    def measured(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        estimate: Estimate,
        before: Memory,
    ) -> Estimate:
        assert estimate.batch is not None, (
            "a calibrated correction requires a subsample that returns its batch"
        )
        memory: CalibrationMemory = before.noise
        changes = self.model.sum_remainders(1, position, memory.centre, estimate.batch)
        nearly_exact = self.model.prior_gradient(position) + memory.row_sum + changes
        error = self.geometry.pull(estimate.gradient - nearly_exact)
        newest = second_moment(error[None], self.shape)
        averaged = memory.covariance + (newest - memory.covariance) / self.every
        # Return the average before this error: the correction of a step is then independent of the
        # noise of that step.
        learned = CalibrationMemory(memory.centre, memory.row_sum, averaged)
        return dataclasses.replace(
            estimate,
            noise=memory.covariance,
            memory=dataclasses.replace(estimate.memory, noise=learned),
        )


def _moments(
    rows: RowBlock,
    counted: Bool[Array, " n"],
    noise: Calibrated,
    positions: Float[Array, "chains d"],
    n_rows: int,
) -> tuple[Float[Array, "chains d"], Float[Array, "chains ..."]]:
    """Σ ∇f_i and the second moment of Cᵀ∇f_i over a block, per chain."""

    def moments_at(position: Float[Array, " d"]) -> tuple[Array, Array]:
        gradients = noise.model.expand(noise.model.row_gradients(position, rows), rows)
        gradients = jnp.where(counted[:, None], gradients, 0)
        return jnp.sum(gradients, axis=0), second_moment(
            noise.geometry.pull(gradients), noise.shape
        )

    return jax.vmap(moments_at)(positions)


def _uniform_noise(
    total: Sum, noise: Calibrated, positions: Float[Array, "chains d"], n_rows: int
) -> tuple[Float[Array, "chains d"], Float[Array, "chains ..."]]:
    """Σ ∇f_i, and the covariance of the simple estimate with rows drawn uniformly."""
    sums, second = total.rounded()
    squared_sums = jax.vmap(
        lambda row_sum: second_moment(noise.geometry.pull(row_sum)[None], noise.shape)
    )(sums)
    return sums, (n_rows * second - squared_sums) / noise.size
