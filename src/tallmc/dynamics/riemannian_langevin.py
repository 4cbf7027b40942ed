"""Riemannian Langevin dynamics, SGRLD (Patterson and Teh, 2013): Langevin in a metric G(θ).

    θ' = θ + (ε/2) (Γ(θ) − G⁻¹∇f̂(θ)) + √ε Rη,   RRᵀ = G⁻¹,   Γ_i = Σ_j ∂(G⁻¹)_ij/∂θ_j

This is nemeth-2021, Table 1, by eq. 11 (as printed, eq. 11 has the wrong sign of Γ; eq. 10 is
right). Gradient noise of covariance V is corrected by η ~ N(0, I − (ε/4)RᵀVR).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .._core.arrays import Matrix, Scalar, Vector, dot
from .dynamics import DynamicsStep, Evaluate, PositionState, reduced_noise, transformed
from .metric import AbstractRiemannian, inverse_root


class RiemannianLangevin(AbstractRiemannian):
    """Riemannian Langevin dynamics.

    `metric` is "fisher" (generalised linear models), or a function from the parameters to a
    positive definite d×d matrix.
    """

    paper = "Patterson and Teh (2013)"
    bias = "The bias at fixed ε is of order ε."

    def step(
        self, state: PositionState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        estimate = evaluate(state.position, None)
        root = inverse_root(self.metric, state.position)
        drift = self.gamma(state.position) - dot(root, dot(root.T, estimate.gradient))
        injected = reduced_noise(noise, transformed(estimate.noise, root), step_size / 4)
        move = step_size / 2 * drift + jnp.sqrt(step_size) * dot(root, injected.noise)
        moved = PositionState(state.position + move)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)

    def gamma(self, position: Vector) -> Vector:
        """Γ_i = Σ_j ∂(G⁻¹)_ij/∂θ_j."""

        def inverse(at: Vector) -> Matrix:
            root = inverse_root(self.metric, at)
            return dot(root, root.T)

        return jnp.einsum("ijj->i", jax.jacfwd(inverse)(position))
