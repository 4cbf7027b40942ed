"""Gradient noise from the spread of sums over groups of the estimate's own batch. Unbiased.

n independent draws are split into k groups of n/k. Their sums T_g = Σ_{i∈g} w_i r_i are independent
and of one law, so (k/(k − 1)) Σ (T_g − T̄)(T_g − T̄)ᵀ estimates the covariance of Σ T_g without bias.
It takes k derivatives of sums instead of n row gradients, which are full vectors in models such as
neural networks. It has k − 1 degrees of freedom instead of n − 1. The gradient estimate itself is
the sum over the groups, so rows are not differentiated twice.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.linear_maps import AbstractLinearMap
from ..gradient.base import AbstractGradient
from ..gradient.renewal import AbstractUnrenewed
from ..rows.batch import Batch
from ..subsample.selection import Estimate, Memory, centred
from .base import AbstractNoiseEstimate, Shape, second_moment


class WithinGroups(AbstractNoiseEstimate, AbstractUnrenewed):
    """The noise estimated from groups of the current batch, without memory."""

    geometry: AbstractLinearMap
    shape: Shape = eqx.field(static=True)
    groups: int = eqx.field(static=True)

    def measured(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        estimate: Estimate,
        before: Memory,
    ) -> Estimate:
        batch = estimate.batch
        assert batch is not None, "a correction from groups requires a subsample with one batch"

        def of_group(group: Batch) -> Float[Array, " d"]:
            # `packed` holds all rows and is not split.
            whole = Batch(group.rows, group.weights, group.indices, batch.packed)
            return gradient.residual_sum(position, whole, before.gradient)

        split = jax.tree.map(
            lambda leaf: leaf.reshape(self.groups, -1, *leaf.shape[1:]),
            Batch(batch.rows, batch.weights, batch.indices),
        )
        sums = jax.vmap(of_group)(split)
        return dataclasses.replace(
            estimate,
            gradient=gradient.known(position, before.gradient) + jnp.sum(sums, axis=0),
            noise=second_moment(self.geometry.pull(centred(sums)), self.shape),
        )
