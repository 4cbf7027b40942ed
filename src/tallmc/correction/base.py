"""Estimates of the covariance of gradient noise, Cov(Cᵀ∇f̂): its diagonal or the full matrix."""

from __future__ import annotations

import abc
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.linear_maps import dot
from ..gradient.base import AbstractGradient
from ..gradient.renewal import AbstractRenewable
from ..subsample.selection import Estimate, Memory

Shape = Literal["diagonal", "dense"]
Covariance = Float[Array, " d"] | Float[Array, "d d"]


class AbstractNoiseEstimate(AbstractRenewable):
    """An estimator of the noise of each gradient estimate, evaluated together with that estimate.

    >>> from tallmc.correction.within_batch import WithinBatch
    >>> issubclass(WithinBatch, AbstractNoiseEstimate)
    True
    """

    @abc.abstractmethod
    def measured(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        estimate: Estimate,
        before: Memory,
    ) -> Estimate:
        """The estimate at `position` with the covariance of its noise and the memory after it.

        `before` is the memory of the chain before the step.
        """


def second_moment(vectors: Float[Array, "n d"], shape: Shape) -> Covariance:
    """Σ v vᵀ, or its diagonal."""
    return jnp.sum(vectors**2, axis=0) if shape == "diagonal" else dot(vectors.T, vectors)
