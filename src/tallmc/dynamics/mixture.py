"""A mixture of Student t distributions, one per mode of the posterior, to propose positions from.

    q(θ) = Σ_m w_m t_ν(θ; μ_m, C_m C_mᵀ),   ν = d + 5

The tails of a proposal must not be lighter than those of the posterior, or a chain stays in a tail
for long. In d dimensions a fixed ν would make the bulk of the mixture unlike a Gaussian.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PRNGKeyArray

from ..core.random import standard_normal

_DEGREES_OF_FREEDOM = 5  # in addition to d


class Mixture(eqx.Module):
    """A mixture of t distributions.

    **Arguments:**

    - `centres`: μ_m.
    - `factors`: the lower triangular C_m.
    - `log_weights`: log w_m; the w_m sum to one.
    """

    centres: Float[Array, "modes d"]
    factors: Float[Array, "modes d d"]
    log_weights: Float[Array, " modes"]

    def draw(self, key: PRNGKeyArray, steps: int) -> Float[Array, "steps d"]:
        """Draw `steps` positions."""
        mode_key, normal_key, scale_key = jax.random.split(key, 3)
        dim, dtype = self.centres.shape[1], self.centres.dtype
        mode = jax.random.categorical(mode_key, self.log_weights, shape=(steps,))
        normal = standard_normal(normal_key, (steps, dim), dtype)
        freedom = dim + _DEGREES_OF_FREEDOM
        # χ²_ν = 2 Gamma(ν/2)
        mean_square = 2 * jax.random.gamma(scale_key, freedom / 2, (steps,), dtype) / freedom
        spread = normal / jnp.sqrt(mean_square)[:, None]
        moves = jnp.einsum(
            "sij,sj->si", self.factors[mode], spread, precision=jax.lax.Precision.HIGHEST
        )
        return self.centres[mode] + moves

    def log_density(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        """log q(θ), up to a constant."""
        dim = position.shape[0]
        freedom = dim + _DEGREES_OF_FREEDOM

        def of_mode(centre: Array, factor: Array) -> Float[Array, ""]:
            standardised = solve_triangular(factor, position - centre, lower=True)
            bulk = jnp.log1p(jnp.sum(standardised**2) / freedom)
            return -(freedom + dim) / 2 * bulk - jnp.sum(jnp.log(jnp.diagonal(factor)))

        each = jax.vmap(of_mode)(self.centres, self.factors)
        return jax.nn.logsumexp(self.log_weights + each)
