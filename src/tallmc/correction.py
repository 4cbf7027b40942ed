"""Correcting for gradient noise: the noise that the subsample brings is taken off the noise that the dynamics injects.

A step with gradient noise of covariance V has (ε²/4)V too much variance. It is put right by injecting that much less,
Z ~ N(0, I − (ε/4)V) in place of N(0, I) (nemeth-2021, section 3), or, where there is friction, by more friction in proportion
(li-2021, appendix F). V is not known; it is estimated in one of two ways:

    from the batch     the spread of the terms w_i r_i within each step's own batch: unbiased, so that the variance of a step is
                       right on average, and the stationary covariance on a Gaussian is that of exact gradients
    calibrated         every m steps a pass over all rows gives the first two moments of the rows' gradients at ω = θ; between
                       passes each batch corrects them, SVRG-fashion, by w_i [φ_i(θ) − φ_i(ω)]. For uniform draws and the simple
                       estimator. (Algorithm 2 of li-2021 never sets ω and lets its moments pile up; this is what it means.)

What is left of the injected variance is positive by construction: directions in which V is too large for the step get no noise,
and the share of tr V that was not taken off is recorded (`uncorrected_noise`). A chain in which V is too large over all
directions together, (ε/4) tr V > d, ends with an outcome that says so.
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
from ._rows import count_rows, dot, sum_rows
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
    def covariance(self, position: Float[Array, " d"], estimate: Estimate, memory: PyTree[Array]) -> Covariance:
        """The covariance of the estimate just made at `position`."""


class WithinBatch(AbstractNoiseEstimate):
    geometry: AbstractGeometry
    shape: Shape = eqx.field(static=True)

    def start(self, position: Float[Array, " d"]) -> None:
        return None

    def refresh(self, memory: None, position: Float[Array, " d"], step: Int[Array, ""]) -> None:
        return None

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.zeros_like(step)

    def covariance(self, position: Float[Array, " d"], estimate: Estimate, memory: None) -> Covariance:
        assert estimate.spread is not None, "a method with this correction has a subsample that knows its spread"
        return _second_moment(self.geometry.pull(estimate.spread), self.shape)


class Moments(eqx.Module):
    centre: Float[Array, " d"]
    """ω."""
    first: Float[Array, " d"]
    """m₁(ω) = Σ Cᵀ∇f_i(ω)."""
    second: Covariance
    """m₂(ω) = N Σ Cᵀ∇f_i(ω) ∇f_i(ω)ᵀC."""


class Calibrated(AbstractNoiseEstimate):
    posterior: AbstractPosterior
    geometry: AbstractGeometry
    shape: Shape = eqx.field(static=True)
    every: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    """Draws in one estimate, whose covariance is that of a single one divided by this."""

    def start(self, position: Float[Array, " d"]) -> Moments:
        d = position.shape[0]  # all of it is found before the first step
        return Moments(position, position, jnp.zeros((d, d) if self.shape == "dense" else (d,), position.dtype))

    def refresh(self, memory: Moments, position: Float[Array, " d"], step: Int[Array, ""]) -> Moments:
        return lax.cond(step % self.every == 0, lambda: self._moments_at(position), lambda: memory)

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return -(-step // self.every)

    def covariance(self, position: Float[Array, " d"], estimate: Estimate, memory: Moments) -> Covariance:
        assert estimate.batch is not None, "a method with this correction has a subsample that gives its batch"
        rows, weights = estimate.batch.rows, estimate.batch.weights
        first_now, second_now = self._batch_moments(position, rows, weights)
        first_then, second_then = self._batch_moments(memory.centre, rows, weights)
        first, second = memory.first + first_now - first_then, memory.second + second_now - second_then
        return positive_part(second - _second_moment(first[None], self.shape)) / self.size

    def _moments_at(self, position: Float[Array, " d"]) -> Moments:
        def block(rows: PyTree[Array]) -> tuple[Array, Array]:
            return self._batch_moments(position, rows, jnp.ones(count_rows(rows), position.dtype))

        first, second = sum_rows(block, self.posterior.data, self.posterior.width).rounded()
        return Moments(position, first, second)

    def _batch_moments(
        self, position: Float[Array, " d"], rows: PyTree[Array], weights: Float[Array, " n"]
    ) -> tuple[Float[Array, " d"], Covariance]:
        """Σ w_i φ_i, φ_i the first and second moments of row i's gradient."""
        gradients = self.geometry.pull(self.posterior.expand(self.posterior.row_gradients(position, rows), rows))
        second = _second_moment(jnp.sqrt(weights * self.posterior.n_rows)[:, None] * gradients, self.shape)
        return dot(weights, gradients), second


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
    outcome = jnp.where(jnp.mean(taken) <= 1, Outcome.OK, Outcome.TOO_NOISY).astype(jnp.int32)
    return Shrunk(noise, {"uncorrected_noise": uncorrected}, outcome)


def applied(covariance: Covariance, vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """V v."""
    return covariance * vector if covariance.ndim == 1 else dot(covariance, vector)


def positive_part(covariance: Covariance) -> Covariance:
    """The nearest covariance: negative directions are set to zero."""
    if covariance.ndim == 1:
        return jnp.maximum(covariance, 0)
    values, axes = jnp.linalg.eigh(covariance)
    return dot(axes * jnp.maximum(values, 0), axes.T)


def _second_moment(vectors: Float[Array, "n d"], shape: Shape) -> Covariance:
    return jnp.sum(vectors**2, axis=0) if shape == "diagonal" else dot(vectors.T, vectors)


@dataclasses.dataclass(frozen=True)
class NoiseCorrection:
    """Correct for gradient noise, coordinate by coordinate ("diagonal") or in all directions ("dense", O(d³) a step).

    `through="noise"` injects less noise; `through="friction"`, for dynamics with momentum, adds friction. The noise is estimated
    from each batch, or, with `calibrate_every` so many steps, from a pass over all rows and what the batches since say.
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
