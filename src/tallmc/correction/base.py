"""Estimates of the covariance of gradient noise, Cov(Cᵀ∇f̂): its diagonal or the full matrix."""

from __future__ import annotations

import abc
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.linear_maps import dot
from ..gradient.renewal import AbstractRenewable
from ..subsample.selection import Estimate

Shape = Literal["diagonal", "dense"]
Covariance = Float[Array, " d"] | Float[Array, "d d"]


class AbstractNoiseEstimate(AbstractRenewable):
    """An estimator of the noise of each gradient estimate, evaluated together with that estimate.

    >>> from tallmc.correction.within_batch import WithinBatch
    >>> issubclass(WithinBatch, AbstractNoiseEstimate)
    True
    """

    @abc.abstractmethod
    def covariance(
        self, position: Float[Array, " d"], estimate: Estimate, memory: Any
    ) -> tuple[Covariance, Any]:
        """The covariance of the gradient estimate at `position`, and the memory after the step."""


def second_moment(vectors: Float[Array, "n d"], shape: Shape) -> Covariance:
    """Σ v vᵀ, or its diagonal."""
    return jnp.sum(vectors**2, axis=0) if shape == "diagonal" else dot(vectors.T, vectors)
