"""Gaussian priors whose precisions are parameters with Gamma priors.

    w ~ N(μ, λ⁻¹),   λ ~ Gamma(shape, rate),   u = log λ

The sampler moves u, so λ stays positive. The density of u has the Jacobian e^u.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PyTree

from ..core.errors import InvalidInput, check_number
from ..core.layout import layout_of
from .transforms import Constraints


@dataclasses.dataclass(frozen=True)
class ExponentialMap:
    """λ = e^u, with the interface of NumPyro's transforms."""

    def __call__(self, free: Float[Array, "*k"]) -> Float[Array, "*k"]:
        return jnp.exp(free)

    def log_abs_det_jacobian(
        self, free: Float[Array, "*k"], constrained: Float[Array, "*k"]
    ) -> Float[Array, "*k"]:
        return free


@dataclasses.dataclass(frozen=True)
class GammaLaw:
    """Gamma(shape, rate)."""

    shape: float
    rate: float

    @classmethod
    def of(cls, parameter: str, given: Any) -> GammaLaw:
        """The law from a pair (shape, rate)."""
        if not isinstance(given, tuple) or len(given) != 2:
            raise InvalidInput(parameter, "be a pair (shape, rate) of a Gamma law", given)
        return cls(*(check_number(parameter, number, 0, low_open=True) for number in given))

    def log_density(self, precision: Float[Array, "*k"]) -> Float[Array, ""]:
        """Σ log p(λ), with all constants."""
        constant = self.shape * np.log(self.rate) - gammaln(self.shape)
        return jnp.sum(constant + (self.shape - 1) * jnp.log(precision) - self.rate * precision)


def normal_log_density(
    values: Float[Array, "*n"], mean: Any, precision: Float[Any, "*k"]
) -> Float[Array, ""]:
    """Σ log N(w | mean, precision⁻¹), with all constants."""
    exponents = precision * (values - mean) ** 2 + np.log(2 * np.pi) - jnp.log(precision)
    return -0.5 * jnp.sum(exponents)


def positive(init: PyTree, names: Sequence[str]) -> tuple[Constraints, PyTree]:
    """Constraints λ = e^u for the leaves with these names, and the unconstrained start."""
    layout, _ = layout_of(init)
    leaves = [
        jnp.log(leaf) if name in names else leaf
        for name, leaf in zip(layout.names, jax.tree.leaves(init), strict=True)
    ]
    constraints = Constraints({name: ExponentialMap() for name in names}, layout)
    return constraints, jax.tree.unflatten(layout.treedef, leaves)
