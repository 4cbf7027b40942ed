"""Correction for gradient noise: subtract the noise of the subsample from the injected noise.

A Langevin step with gradient noise of covariance V has (ε²/4)V too much variance. One correction
injects that much less noise, Z ~ N(0, I − (ε/4)V) in place of N(0, I) (nemeth-2021, section 3).
In general, noise of covariance D is replaced by noise of covariance D − (ε/4)B, where B is the
covariance of the gradient noise in the drift. The docstring of each dynamics has its formula. The
other correction, for `SGHMC`, adds friction in proportion to V (li-2021, appendix F). V is
not known. It is estimated in one of two ways:

    from the batch   The spread of the terms w_i r_i within each step's own batch. It is unbiased,
                     so the variance of a step is right on average, and the stationary covariance
                     on a Gaussian is that of exact gradients.
                     With `groups`, the spread of sums over groups of rows in place of rows: also
                     unbiased, and without row gradients, which a model with many parameters
                     cannot afford.
    calibrated       A pass over all rows every m steps computes Σ ∇f_i at ω = θ. From then on
                     the SVRG estimate, whose noise is small, serves as ∇f(θ):
                     ∇f₀(θ) + Σ ∇f_i(ω) + Σ_{i∈S} w_i [∇f_i(θ) − ∇f_i(ω)].
                     V is the running average, over about m steps, of the squared errors of the
                     estimates that were used. Only for the simple estimator.

The second is a corrected Algorithm 2 of li-2021. As printed, the algorithm never sets ω, lets its
moments accumulate, and uses the covariance of rows drawn uniformly for rows drawn by exponential
weights. Exponential weights cause a mean force along the momentum, which acts as friction. With
them the correction helps where the noise is strong and overcorrects where it is weak.

The remaining injected variance is never negative. Directions in which V is too large for the step
get no injected noise, and the share of tr V that was not removed is recorded
(`uncorrected_noise`). If V is too large over all directions together, the chain ends with the
outcome `TOO_NOISY`: for Langevin dynamics if tr (ε/4)V > d, with added friction if tr (ε²/8)V >
d.

With `groups`, n independent draws are split into k groups of n/k. Their sums T_g = Σ_{i∈g} w_i r_i
are independent and of one law, so (k/(k − 1)) Σ (T_g − T̄)(T_g − T̄)ᵀ estimates the covariance of
Σ T_g without bias. It takes k derivatives of sums instead of n row gradients, and has k − 1 degrees
of freedom instead of n − 1. The gradient estimate itself is the sum over the groups, so rows are
not differentiated twice.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._core.arrays import AbstractLinearMap, IdentityMap, Matrix, Vector, dot
from ._core.errors import InvalidInput, check_int
from ._core.part import Part
from ._rows.access import AbstractRows, RowBlock
from ._rows.law import Batch
from ._rows.passes import Sum
from .gradient.estimator import AbstractRenewable, Positions
from .models.posterior import AbstractPosterior
from .subsample.selection import Estimate, GradientAt, centred

__all__ = ["NoiseCorrection"]

Shape = Literal["diagonal", "dense"]
Covariance = Vector | Matrix
"""The covariance of gradient noise, Cov(Cᵀ∇f̂): its diagonal or the full matrix."""


def second_moment(vectors: Float[Array, "n d"], shape: Shape) -> Covariance:
    """Σ v vᵀ, or its diagonal."""
    return jnp.sum(vectors**2, axis=0) if shape == "diagonal" else dot(vectors.T, vectors)


class Calibration(eqx.Module):
    """What a calibrated correction keeps: the last pass, and the noise seen so far."""

    centre: Float[Array, "*chains d"]  # ω, the position of the last pass
    row_sum: Float[Array, "*chains d"]  # Σ ∇f_i(ω) over all rows
    covariance: Float[Array, ...]  # V, the running average of the squared errors of the estimates


class NoiseCorrection(Part, AbstractRenewable):
    """Correct for gradient noise.

    **Arguments:**

    - `shape`: "diagonal" corrects each coordinate by itself. "dense" corrects all directions.
    - `through`: "noise" injects less noise. "friction", for `SGHMC`, adds friction.
    - `calibrate_every`: None estimates the noise from each batch. A number m estimates it from the
      errors of earlier estimates, with a pass over all rows every m steps.
    - `groups`: None estimates the noise from the rows of each batch. A number k estimates it from
      the sums over k groups of rows, which is cheaper if row gradients are full vectors, as in
      neural networks.
    """

    paper = "Ahn, Korattikara and Welling (2012)"
    cost = '"dense" costs O(d³) per step. Calibration takes a pass over all rows every m steps.'

    shape: Shape = eqx.field(default="diagonal", static=True)
    through: Literal["noise", "friction"] = eqx.field(default="noise", static=True)
    calibrate_every: int | None = eqx.field(default=None, static=True)
    groups: int | None = eqx.field(default=None, static=True)
    geometry: AbstractLinearMap = eqx.field(default=IdentityMap(), repr=False, kw_only=True)
    model: Any = eqx.field(default=None, repr=False, kw_only=True)
    batch_size: int = eqx.field(default=0, static=True, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.shape not in ("diagonal", "dense"):
            raise InvalidInput("shape", 'be "diagonal" or "dense"', self.shape)
        if self.through not in ("noise", "friction"):
            raise InvalidInput("through", 'be "noise" or "friction"', self.through)
        if self.calibrate_every is not None:
            check_int("calibrate_every", self.calibrate_every, 1)
        if self.groups is not None:
            check_int("groups", self.groups, 2)
            if self.calibrate_every is not None:
                rule = "be left out with calibrate_every, which needs no spread of the batch"
                raise InvalidInput("groups", rule, self.groups)

    def prepare(
        self, posterior: AbstractPosterior, geometry: AbstractLinearMap, batch_size: int
    ) -> Self:
        """The estimate of the noise for one posterior and one number of rows per step."""
        return self._with(geometry=geometry, model=posterior.model, batch_size=batch_size)

    @property
    def renewed_every(self) -> int | None:
        return self.calibrate_every

    def start(self, positions: Positions, rows: AbstractRows) -> Calibration | None:
        """The initial covariance is that of `batch_size` rows drawn uniformly."""
        if self.calibrate_every is None:
            return None
        width, n_rows = self.model.width(rows), rows.n_rows
        sums, covariance = rows.reduce(
            _moments, self, positions, n_rows, width=width, finish=_uniform_noise
        )
        return Calibration(positions, sums, covariance)

    def renew(self, carried: Any, positions: Positions, row_sums: Positions) -> Calibration | None:
        if self.calibrate_every is None:
            return None
        return Calibration(positions, row_sums, carried.covariance)

    def measured(self, at: GradientAt, estimate: Estimate) -> Estimate:
        """The estimate with the covariance of its noise and the memory after it."""
        if self.calibrate_every is not None:
            return self._from_errors(at, estimate)
        if self.groups is not None:
            return self._from_groups(at, estimate)
        assert estimate.spread is not None, (
            "a correction from the batch requires a subsample that returns its spread"
        )
        noise = second_moment(self.geometry.pull(estimate.spread), self.shape)
        return dataclasses.replace(estimate, noise=noise)

    def _from_groups(self, at: GradientAt, estimate: Estimate) -> Estimate:
        batch = estimate.batch
        assert batch is not None, "a correction from groups requires a subsample with one batch"

        def of_group(group: Batch) -> Vector:
            # `packed` holds all rows and is not split.
            return at.residual_sum(Batch(group.rows, group.weights, group.indices, batch.packed))

        split = jax.tree.map(
            lambda leaf: leaf.reshape(self.groups, -1, *leaf.shape[1:]),
            Batch(batch.rows, batch.weights, batch.indices),
        )
        sums = jax.vmap(of_group)(split)
        return dataclasses.replace(
            estimate,
            gradient=at.known + jnp.sum(sums, axis=0),
            noise=second_moment(self.geometry.pull(centred(sums)), self.shape),
        )

    def _from_errors(self, at: GradientAt, estimate: Estimate) -> Estimate:
        carried: Calibration = at.carried.noise
        assert estimate.batch is not None, (
            "a calibrated correction requires a subsample that returns its batch"
        )
        changes = self.model.sum_remainders(1, at.position, carried.centre, estimate.batch)
        nearly_exact = self.model.prior_gradient(at.position) + carried.row_sum + changes
        error = self.geometry.pull(estimate.gradient - nearly_exact)
        newest = second_moment(error[None], self.shape)
        assert self.calibrate_every is not None, "the correction is calibrated"
        averaged = carried.covariance + (newest - carried.covariance) / self.calibrate_every
        # Return the average before this error: the correction of a step is then independent of the
        # noise of that step.
        learned = Calibration(carried.centre, carried.row_sum, averaged)
        return dataclasses.replace(
            estimate,
            noise=carried.covariance,
            carried=dataclasses.replace(estimate.carried, noise=learned),
        )


def _moments(
    block: RowBlock,
    counted: Bool[Array, " n"],
    noise: NoiseCorrection,
    positions: Positions,
    n_rows: int,
) -> tuple[Positions, Float[Array, "chains ..."]]:
    """Σ ∇f_i and the second moment of Cᵀ∇f_i over a block, per chain."""

    def moments_at(position: Vector) -> tuple[Array, Array]:
        gradients = noise.model.expand(noise.model.row_gradients(position, block), block)
        gradients = jnp.where(counted[:, None], gradients, 0)
        return jnp.sum(gradients, axis=0), second_moment(
            noise.geometry.pull(gradients), noise.shape
        )

    return jax.vmap(moments_at)(positions)


def _uniform_noise(
    total: Sum, noise: NoiseCorrection, positions: Positions, n_rows: int
) -> tuple[Positions, Float[Array, "chains ..."]]:
    """Σ ∇f_i, and the covariance of the simple estimate with rows drawn uniformly."""
    sums, second = total.rounded()
    squared_sums = jax.vmap(
        lambda row_sum: second_moment(noise.geometry.pull(row_sum)[None], noise.shape)
    )(sums)
    return sums, (n_rows * second - squared_sums) / noise.batch_size
