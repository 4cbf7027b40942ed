"""Gradient noise from the spread of the terms w_i r_i within the estimate's own batch. Unbiased."""

from __future__ import annotations

import dataclasses

import equinox as eqx
from jaxtyping import Array, Float

from ..core.linear_maps import AbstractLinearMap
from ..gradient.base import AbstractGradient
from ..gradient.renewal import AbstractUnrenewed
from ..subsample.selection import Estimate, Memory
from .base import AbstractNoiseEstimate, Shape, second_moment


class WithinBatch(AbstractNoiseEstimate, AbstractUnrenewed):
    """The noise estimated from the current batch alone, without memory."""

    geometry: AbstractLinearMap
    shape: Shape = eqx.field(static=True)

    def measured(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        estimate: Estimate,
        before: Memory,
    ) -> Estimate:
        assert estimate.spread is not None, (
            "a correction from the batch requires a subsample that returns its spread"
        )
        noise = second_moment(self.geometry.pull(estimate.spread), self.shape)
        return dataclasses.replace(estimate, noise=noise)
