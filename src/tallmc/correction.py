"""Correcting for gradient noise: the noise that the subsample brings is taken off the noise that the dynamics injects.

A step with gradient noise of covariance V has (ε²/4)V too much variance. It is put right by injecting that much less,
Z ~ N(0, I − (ε/4)V) in place of N(0, I) (nemeth-2021, section 3), or, where there is a momentum, by friction in proportion
(li-2021, appendix F). V is not known; it is estimated in one of two ways:

    from the batch     the spread of the terms w_i r_i within each step's own batch: unbiased, so that the variance of a step is
                       right on average, and the stationary covariance on a Gaussian is that of exact gradients
    calibrated         every m steps a pass over all rows gives Σ ∇f_i at ω = θ; from then on ∇f(θ) is known to within the small
                       noise of SVRG, ∇f₀(θ) + Σ ∇f_i(ω) + Σ_{i∈S} w_i [∇f_i(θ) − ∇f_i(ω)], and V is the running average, over
                       about m steps, of the squared errors of the estimates that were used. For the simple estimator.

The second is Algorithm 2 of li-2021 put right: as printed it never sets ω, lets its moments pile up, and takes the covariance
of rows drawn uniformly for that of rows drawn by exponential weights. Exponential weights bring a mean force along the
momentum, which is a friction of its own: there the correction helps where noise is strong and overdoes it where it is weak.

What is left of the injected variance is positive by construction: directions in which V is too large for the step get no noise,
and the share of tr V that was not taken off is recorded (`uncorrected_noise`). A chain in which V is too large over all
directions together, tr (ε/4)V > d, or through friction tr (ε²/8)V > d, ends with an outcome that says so.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from ._errors import InvalidInput, check_int
from ._outcome import Outcome
from ._posterior import AbstractPosterior
from ._rows import dot, sum_rows
from .geometry import AbstractGeometry
from .subsample.selection import Estimate

Shape = Literal["diagonal", "dense"]
Covariance = Float[Array, " d"] | Float[Array, "d d"]


class AbstractNoiseEstimate(eqx.Module):
    """An estimate of Cov(Cᵀ∇f̂), its diagonal or all of it."""

    @abc.abstractmethod
    def start(self, position: Float[Array, " d"]) -> PyTree[Array]:
        """The memory of a chain that starts at `position`."""

    @abc.abstractmethod
    def refresh(self, memory: PyTree[Array], position: Float[Array, " d"], step: Int[Array, ""]) -> PyTree[Array]:
        """The memory after the pass over all rows that is due before this step, if one is."""

    @abc.abstractmethod
    def passes_before(self, step: np.ndarray) -> np.ndarray:
        """Passes over all rows made for the first `step` steps."""

    @abc.abstractmethod
    def covariance(
        self, position: Float[Array, " d"], estimate: Estimate, memory: PyTree[Array]
    ) -> tuple[Covariance, PyTree[Array]]:
        """The covariance of the estimate just made at `position`, and the memory after it."""


class WithinBatch(AbstractNoiseEstimate):
    geometry: AbstractGeometry
    shape: Shape = eqx.field(static=True)

    def start(self, position: Float[Array, " d"]) -> None:
        return None

    def refresh(self, memory: None, position: Float[Array, " d"], step: Int[Array, ""]) -> None:
        return None

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.zeros_like(step)

    def covariance(self, position: Float[Array, " d"], estimate: Estimate, memory: None) -> tuple[Covariance, None]:
        assert estimate.spread is not None, "a method with this correction has a subsample that knows its spread"
        return _second_moment(self.geometry.pull(estimate.spread), self.shape), None


class Errors(eqx.Module):
    centre: Float[Array, " d"]
    """ω."""
    row_sum: Float[Array, " d"]
    """Σ ∇f_i(ω) over all rows."""
    covariance: Covariance
    """The running average of the estimates' squared errors."""


class Calibrated(AbstractNoiseEstimate):
    posterior: AbstractPosterior
    geometry: AbstractGeometry
    shape: Shape = eqx.field(static=True)
    every: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def start(self, position: Float[Array, " d"]) -> Errors:
        """Before any error was seen: the covariance of `size` rows drawn uniformly."""

        def block(rows: PyTree[Array]) -> tuple[Array, Array]:
            gradients = self.posterior.expand(self.posterior.row_gradients(position, rows), rows)
            return jnp.sum(gradients, axis=0), _second_moment(self.geometry.pull(gradients), self.shape)

        total, second = sum_rows(block, self.posterior.data, self.posterior.width).rounded()
        first = _second_moment(self.geometry.pull(total)[None], self.shape)
        return Errors(position, total, (self.posterior.n_rows * second - first) / self.size)

    def refresh(self, memory: Errors, position: Float[Array, " d"], step: Int[Array, ""]) -> Errors:
        def recentred() -> Errors:
            gradient = self.posterior.potential_and_gradient_sum(position).rounded()[1]
            return Errors(position, gradient - self.posterior.prior_gradient(position), memory.covariance)

        return lax.cond((step > 0) & (step % self.every == 0), recentred, lambda: memory)

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.maximum(1, -(-step // self.every))

    def covariance(self, position: Float[Array, " d"], estimate: Estimate, memory: Errors) -> tuple[Covariance, Errors]:
        assert estimate.batch is not None, "a method with this correction has a subsample that gives its batch"
        rows, weights = estimate.batch.rows, estimate.batch.weights
        moved = self.posterior.row_gradients(position, rows) - self.posterior.row_gradients(memory.centre, rows)
        exact = self.posterior.prior_gradient(position) + memory.row_sum + self.posterior.combine(moved, rows, weights)
        error = self.geometry.pull(estimate.gradient - exact)
        newest = _second_moment(error[None], self.shape)
        averaged = memory.covariance + (newest - memory.covariance) / self.every
        # The average before this error: what a step corrects by is independent of the noise it corrects.
        return memory.covariance, Errors(memory.centre, memory.row_sum, averaged)


class Shrunk(NamedTuple):
    """Noise of covariance I − share·V, or as near to it as there is room for."""

    noise: Float[Array, " d"]
    stats: dict[str, Array]
    outcome: Int[Array, ""] | np.int32


def shrunk(normal: Float[Array, " d"], covariance: Covariance | None, share: Float[Array, ""]) -> Shrunk:
    """Standard normal noise less the share of V that a step brings by itself."""
    if covariance is None:
        return Shrunk(normal, {}, np.int32(Outcome.OK))
    if covariance.ndim == 1:
        taken = share * covariance
        noise = jnp.sqrt(jnp.maximum(1 - taken, 0)) * normal
    else:
        taken, axes = jnp.linalg.eigh(share * covariance)
        noise = dot(axes, jnp.sqrt(jnp.maximum(1 - taken, 0)) * dot(axes.T, normal))
    uncorrected = jnp.sum(jnp.maximum(taken - 1, 0)) / jnp.maximum(jnp.sum(taken), jnp.finfo(taken.dtype).tiny)
    return Shrunk(noise, {"uncorrected_noise": uncorrected}, _room(covariance, share))


class Drag(NamedTuple):
    """What friction takes off a momentum in proportion to the noise of its kicks."""

    force: Float[Array, " d"]
    outcome: Int[Array, ""] | np.int32


def drag(momentum: Float[Array, " d"], covariance: Covariance | None, step: Float[Array, ""]) -> Drag:
    """The friction (h/2)Vρ that balances kicks of covariance h²V. Where (h²/2)V > I it would turn the momentum round."""
    if covariance is None:
        return Drag(jnp.zeros_like(momentum), np.int32(Outcome.OK))
    applied = covariance * momentum if covariance.ndim == 1 else dot(covariance, momentum)
    return Drag(step / 2 * applied, _room(covariance, step**2 / 2))


def _room(covariance: Covariance, share: Float[Array, ""]) -> Int[Array, ""]:
    """Whether, over all directions, share·V is no more than the variance it is to be taken from."""
    variances = covariance if covariance.ndim == 1 else jnp.diagonal(covariance)
    return jnp.where(share * jnp.mean(variances) <= 1, Outcome.OK, Outcome.TOO_NOISY).astype(jnp.int32)


def _second_moment(vectors: Float[Array, "n d"], shape: Shape) -> Covariance:
    return jnp.sum(vectors**2, axis=0) if shape == "diagonal" else dot(vectors.T, vectors)


@dataclasses.dataclass(frozen=True)
class NoiseCorrection:
    """Correct for gradient noise, coordinate by coordinate ("diagonal") or in all directions ("dense", O(d³) a step).

    `through="noise"` injects less noise; `through="friction"`, for dynamics with momentum, adds friction. The noise is estimated
    from each batch, or, with a pass over all rows `calibrate_every` so many steps, from the errors of the estimates since.
    """

    shape: Shape = "diagonal"
    through: Literal["noise", "friction"] = "noise"
    calibrate_every: int | None = None

    def __post_init__(self) -> None:
        if self.shape not in ("diagonal", "dense"):
            raise InvalidInput("shape", 'be "diagonal" or "dense"', self.shape)
        if self.through not in ("noise", "friction"):
            raise InvalidInput("through", 'be "noise" or "friction"', self.through)
        if self.calibrate_every is not None:
            check_int("calibrate_every", self.calibrate_every, 1)

    def prepare(self, posterior: AbstractPosterior, geometry: AbstractGeometry, size: int) -> AbstractNoiseEstimate:
        if self.calibrate_every is None:
            return WithinBatch(geometry=geometry, shape=self.shape)
        return Calibrated(posterior=posterior, geometry=geometry, shape=self.shape, every=self.calibrate_every, size=size)
