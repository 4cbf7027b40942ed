"""The rows of Table 1 of nemeth-2021 as recipes, with H, D and Q as in the paper.

In each function `d` is the number of parameters, `friction` is γ and `inverse_root` is R(θ). Each
recipe has a direct form in `tallmc.dynamics` that takes the same steps.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float

from tallmc._core.arrays import Vector, dot
from tallmc.contrib.recipe import Recipe

InverseRoot = Callable[[Vector], Float[Array, "d d"]]  # R(θ) with RRᵀ = G(θ)⁻¹


def sgld_recipe(d: int) -> Recipe:
    """Return SGLD: H = f, D = I, Q = 0."""
    return Recipe(diffusion=lambda zeta: jnp.eye(d), curl=lambda zeta: jnp.zeros((d, d)))


def sgrld_recipe(d: int, inverse_root: InverseRoot) -> Recipe:
    """Return SGRLD: H = f, D = G⁻¹, Q = 0."""
    return Recipe(
        diffusion=lambda zeta: _inverse(inverse_root(zeta)), curl=lambda zeta: jnp.zeros((d, d))
    )


def sghmc_recipe(d: int, friction: float | Float[Array, "d d"]) -> Recipe:
    """Return SGHMC: H = f + ρᵀρ/2, D = diag(0, C), Q = [[0, −I], [I, 0]].

    `friction` is the matrix C, or a number γ for C = γI.
    """
    zero, one = jnp.zeros((d, d)), jnp.eye(d)
    matrix = jnp.asarray(friction) * (one if jnp.ndim(friction) == 0 else 1)
    return Recipe(
        diffusion=lambda zeta: block_diag(zero, matrix),
        curl=lambda zeta: jnp.block([[zero, -one], [one, zero]]),
        energy=lambda zeta: jnp.sum(zeta[d:] ** 2) / 2,
        auxiliary=d,
    )


def sgrhmc_recipe(d: int, inverse_root: InverseRoot, friction: float = 1.0) -> Recipe:
    """Return SGRHMC: H = f + ρᵀρ/2, D = diag(0, γG⁻¹), Q = [[0, −R], [Rᵀ, 0]].

    The paper has γ = 1.
    """
    zero = jnp.zeros((d, d))

    def curl(zeta: Float[Array, " k"]) -> Float[Array, "k k"]:
        root = inverse_root(zeta[:d])
        return jnp.block([[zero, -root], [root.T, zero]])

    return Recipe(
        diffusion=lambda zeta: block_diag(zero, friction * _inverse(inverse_root(zeta[:d]))),
        curl=curl,
        energy=lambda zeta: jnp.sum(zeta[d:] ** 2) / 2,
        auxiliary=d,
    )


def sgnht_recipe(d: int, friction: float) -> Recipe:
    """Return SGNHT: H = f + ρᵀρ/2 + (η − A)²/2a with a = 1/d, and `friction` A.

    D = diag(0, AI, 0), Q = [[0, −I, 0], [I, 0, ρ/d], [0, −ρᵀ/d, 0]].
    """
    zero, one, column, corner = jnp.zeros((d, d)), jnp.eye(d), jnp.zeros((d, 1)), jnp.zeros((1, 1))

    def curl(zeta: Float[Array, " k"]) -> Float[Array, "k k"]:
        momentum = zeta[d : 2 * d, None] / d
        last = [column.T, -momentum.T, corner]
        return jnp.block([[zero, -one, column], [one, zero, momentum], last])

    return Recipe(
        diffusion=lambda zeta: block_diag(zero, friction * one, corner),
        curl=curl,
        energy=lambda zeta: (
            jnp.sum(zeta[d : 2 * d] ** 2) / 2 + d * (zeta[2 * d] - friction) ** 2 / 2
        ),
        auxiliary=d + 1,
        start=[0.0] * d + [friction],
    )


def _inverse(root: Float[Array, "d d"]) -> Float[Array, "d d"]:
    return dot(root, root.T)
