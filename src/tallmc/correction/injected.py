"""Correction of a step: less injected noise, or friction in proportion to the gradient noise."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..core.linear_maps import dot
from ..core.outcome import Outcome
from .base import Covariance


class ReducedNoise(NamedTuple):
    """Noise of covariance I − share·V, with negative eigenvalues set to zero."""

    noise: Float[Array, " d"]
    stats: dict[str, Array]
    outcome: Int[Array, ""] | np.int32


def reduced_noise(
    normal: Float[Array, " d"], covariance: Covariance | None, share: Float[Array, ""]
) -> ReducedNoise:
    """Reduce standard normal noise by the gradient noise of the step.

    **Arguments:**

    - `normal`: standard normal noise.
    - `covariance`: V, its diagonal or the full matrix; None leaves the noise unchanged.
    - `share`: the factor of V in I − share·V, the covariance of the reduced noise.

    **Returns:** a `ReducedNoise`: the noise, the statistic `uncorrected_noise` and an outcome.

    >>> import jax.numpy as jnp
    >>> reduced_noise(jnp.ones(2), jnp.array([0.0, 3.0]), jnp.float32(0.25)).noise
    Array([1. , 0.5], dtype=float32)
    """
    if covariance is None:
        return ReducedNoise(normal, {}, np.int32(Outcome.OK))
    if covariance.ndim == 1:
        taken = share * covariance
        noise = jnp.sqrt(jnp.maximum(1 - taken, 0)) * normal
    else:
        taken, axes = jnp.linalg.eigh(share * covariance)
        noise = dot(axes, jnp.sqrt(jnp.maximum(1 - taken, 0)) * dot(axes.T, normal))
    uncorrected = jnp.sum(jnp.maximum(taken - 1, 0)) / jnp.maximum(
        jnp.sum(taken), jnp.finfo(taken.dtype).tiny
    )
    return ReducedNoise(noise, {"uncorrected_noise": uncorrected}, _outcome(covariance, share))


def diffusion_noise(
    normal: Float[Array, " k"],
    diffusion: Float[Array, "k k"],
    taken: Float[Array, "k k"] | None,
) -> ReducedNoise:
    """Noise of covariance D − B: that of a diffusion D, less the gradient noise B of the step.

    Eigenvalues of D − B below zero are set to zero.

    **Arguments:**

    - `normal`: standard normal noise.
    - `diffusion`: D.
    - `taken`: B; None leaves the covariance D.

    **Returns:** a `ReducedNoise`: the noise, the statistic `uncorrected_noise` and an outcome.

    >>> import jax.numpy as jnp
    >>> diffusion_noise(jnp.ones(2), jnp.eye(2), jnp.diag(jnp.array([0.0, 0.75]))).noise
    Array([1. , 0.5], dtype=float32)
    """
    remaining = diffusion if taken is None else diffusion - taken
    values, axes = jnp.linalg.eigh(remaining)
    noise = dot(dot(axes * jnp.sqrt(jnp.maximum(values, 0)), axes.T), normal)
    if taken is None:
        return ReducedNoise(noise, {}, np.int32(Outcome.OK))
    total = jnp.trace(taken)
    uncorrected = jnp.sum(jnp.maximum(-values, 0)) / jnp.maximum(total, jnp.finfo(total.dtype).tiny)
    outcome = jnp.where(total <= jnp.trace(diffusion), Outcome.OK, Outcome.TOO_NOISY)
    return ReducedNoise(noise, {"uncorrected_noise": uncorrected}, outcome.astype(jnp.int32))


def transformed(
    covariance: Covariance | None, factor: Float[Array, "d k"]
) -> Float[Array, "k k"] | None:
    """The covariance of Fᵀg from that of g.

    **Arguments:**

    - `covariance`: V, its diagonal or the full matrix; None without a correction.
    - `factor`: F.

    **Returns:** FᵀVF, a full matrix; None without a correction.

    >>> import jax.numpy as jnp
    >>> transformed(jnp.array([1.0, 2.0]), jnp.array([[1.0], [1.0]]))
    Array([[3.]], dtype=float32)
    """
    if covariance is None:
        return None
    pulled = factor.T * covariance if covariance.ndim == 1 else dot(factor.T, covariance)
    return dot(pulled, factor)


class Drag(NamedTuple):
    """Friction on a momentum, in proportion to the gradient noise of its kicks."""

    force: Float[Array, " d"]
    outcome: Int[Array, ""] | np.int32


def drag(
    momentum: Float[Array, " d"], covariance: Covariance | None, step: Float[Array, ""]
) -> Drag:
    """The friction (h/2)Vρ that balances kicks of covariance h²V.

    If (h²/2)V > I, this friction would reverse the momentum.

    **Arguments:**

    - `momentum`: ρ.
    - `covariance`: V, its diagonal or the full matrix; None gives no friction.
    - `step`: h.

    **Returns:** a `Drag`: the force and an outcome.

    >>> import jax.numpy as jnp
    >>> drag(jnp.array([2.0]), jnp.array([3.0]), jnp.float32(0.5)).force
    Array([1.5], dtype=float32)
    """
    if covariance is None:
        return Drag(jnp.zeros_like(momentum), np.int32(Outcome.OK))
    applied = covariance * momentum if covariance.ndim == 1 else dot(covariance, momentum)
    return Drag(step / 2 * applied, _outcome(covariance, step**2 / 2))


def _outcome(covariance: Covariance, share: Float[Array, ""]) -> Int[Array, ""]:
    """`TOO_NOISY` if the mean of share·V over all directions exceeds the available variance 1."""
    variances = covariance if covariance.ndim == 1 else jnp.diagonal(covariance)
    return jnp.where(share * jnp.mean(variances) <= 1, Outcome.OK, Outcome.TOO_NOISY).astype(
        jnp.int32
    )
