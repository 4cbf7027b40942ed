"""The rows of Table 1 of nemeth-2021 as recipes: H, D and Q as the paper writes them, d the number of parameters.

They are here to be read and to be compared with: each has a fast, direct form (`Langevin`, `RiemannianLangevin`, `Underdamped`,
`RiemannianHamiltonian`, `NoseHoover`), which takes the same steps.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._rows import dot
from .recipe import Recipe

InverseRoot = Callable[[Float[Array, " d"]], Float[Array, "d d"]]
"""R(θ) with RRᵀ = G(θ)⁻¹."""


def sgld_recipe(d: int) -> Recipe:
    """H = f, D = I, Q = 0."""
    return Recipe(diffusion=lambda zeta: jnp.eye(d), curl=lambda zeta: jnp.zeros((d, d)))


def sgrld_recipe(d: int, inverse_root: InverseRoot) -> Recipe:
    """H = f, D = G⁻¹, Q = 0."""
    return Recipe(diffusion=lambda zeta: _inverse(inverse_root(zeta)), curl=lambda zeta: jnp.zeros((d, d)))


def sghmc_recipe(d: int, friction: float) -> Recipe:
    """H = f + ρᵀρ/2, D = diag(0, γI), Q = [[0, −I], [I, 0]]."""
    zero, one = jnp.zeros((d, d)), jnp.eye(d)
    return Recipe(
        diffusion=lambda zeta: jnp.block([[zero, zero], [zero, friction * one]]),
        curl=lambda zeta: jnp.block([[zero, -one], [one, zero]]),
        energy=lambda zeta: jnp.sum(zeta[d:] ** 2) / 2,
        auxiliary=d,
    )


def sgrhmc_recipe(d: int, inverse_root: InverseRoot, friction: float = 1.0) -> Recipe:
    """H = f + ρᵀρ/2, D = diag(0, γG⁻¹), Q = [[0, −R], [Rᵀ, 0]]; the paper has γ = 1."""
    zero = jnp.zeros((d, d))

    def curl(zeta: Float[Array, " k"]) -> Float[Array, "k k"]:
        root = inverse_root(zeta[:d])
        return jnp.block([[zero, -root], [root.T, zero]])

    return Recipe(
        diffusion=lambda zeta: jnp.block([[zero, zero], [zero, friction * _inverse(inverse_root(zeta[:d]))]]),
        curl=curl,
        energy=lambda zeta: jnp.sum(zeta[d:] ** 2) / 2,
        auxiliary=d,
    )


def sgnht_recipe(d: int, friction: float) -> Recipe:
    """H = f + ρᵀρ/2 + (η − A)²/2a with a = 1/d, D = diag(0, AI, 0), Q = [[0, −I, 0], [I, 0, ρ/d], [0, −ρᵀ/d, 0]]."""
    zero, one, column = jnp.zeros((d, d)), jnp.eye(d), jnp.zeros((d, 1))

    def curl(zeta: Float[Array, " k"]) -> Float[Array, "k k"]:
        momentum = zeta[d : 2 * d, None] / d
        return jnp.block([[zero, -one, column], [one, zero, momentum], [column.T, -momentum.T, jnp.zeros((1, 1))]])

    return Recipe(
        diffusion=lambda zeta: jnp.zeros((2 * d + 1, 2 * d + 1)).at[d : 2 * d, d : 2 * d].set(friction * one),
        curl=curl,
        energy=lambda zeta: jnp.sum(zeta[d : 2 * d] ** 2) / 2 + d * (zeta[2 * d] - friction) ** 2 / 2,
        auxiliary=d + 1,
        start=[0.0] * d + [friction],
    )


def _inverse(root: Float[Array, "d d"]) -> Float[Array, "d d"]:
    return dot(root, root.T)
