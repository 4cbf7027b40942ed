"""The regularised horseshoe (Piironen and Vehtari, 2017), for many coefficients near zero.

    β_j ~ N(0, τ² λ̃_j²),   λ̃_j² = c²λ_j²/(c² + τ²λ_j²)
    λ_j ~ half-Cauchy(1),   τ ~ half-Cauchy(τ₀),   c² ~ Inv-Gamma(ν/2, νs²/2)

The hyper-parameters are log λ_j, log τ and log c², unconstrained.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .hierarchy import AbstractHyperprior
from .priors import LogHalfStudentTPrior


class Horseshoe(AbstractHyperprior):
    """The prior of some coefficients, of their local scales, the global scale and the slab."""

    coefficients: tuple[int, ...] = eqx.field(static=True)
    """The coefficients among the parameters."""
    global_scale: Float[Array, ""]
    """τ₀."""
    slab_scale: Float[Array, ""]
    """s."""
    slab_degrees: Float[Array, ""]
    """ν."""

    @property
    def n_hyper(self) -> int:
        return len(self.coefficients) + 2

    def potential(
        self, parameters: Float[Array, " c"], hyper: Float[Array, " h"]
    ) -> Float[Array, ""]:
        beta = parameters[jnp.asarray(self.coefficients)]
        log_local, log_global, log_slab = hyper[:-2], hyper[-2], hyper[-1]
        one = jnp.ones((), hyper.dtype)
        of_local = LogHalfStudentTPrior(one, one).potential(log_local)
        of_global = LogHalfStudentTPrior(self.global_scale, one).potential(hyper[-2:-1])
        half = 0.5 * self.slab_degrees
        of_slab = half * log_slab + half * self.slab_scale**2 * jnp.exp(-log_slab)
        # log λ̃²τ² = log c² − log(1 + c²/τ²λ²)
        log_variance = log_slab - jax.nn.softplus(log_slab - 2 * (log_global + log_local))
        of_beta = 0.5 * jnp.sum(beta**2 * jnp.exp(-log_variance) + log_variance)
        return of_local + of_global + of_slab + of_beta
