"""Riemannian SGHMC, SGRHMC (Ma, Chen and Fox, 2015): underdamped dynamics in a metric G(θ).

    θ' = θ + (ε/2) Rρ
    ρ' = ρ + (ε/2) (Γ(θ) − Rᵀ∇f̂(θ) − γG⁻¹ρ) + √(εγ) Rξ,   RRᵀ = G⁻¹,   Γ_i = Σ_j ∂R_ji/∂θ_j

This is nemeth-2021, Table 1, by eq. 11. The G^(−1/2) of Table 1 can be any R with RRᵀ = G⁻¹, since
the curl [[0, −R], [Rᵀ, 0]] is skew-symmetric for any R.

With G near the curvature of f, all frequencies of (θ, ρ) are near 1, and a friction of 2 is
critical damping. The friction here is the matrix γG⁻¹. Table 1 has γ = 1, which is a friction of
order 1/N where G grows with N: such a chain does not mix. By default γ = 2d/tr G⁻¹ at `init`, so
that the mean friction is 2.

Gradient noise of covariance V is corrected by ξ ~ N(0, I − (ε/4γ)R⁻¹RᵀVRR⁻ᵀ).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from .._core.arrays import Scalar, Vector, dot
from .._core.errors import check_number
from ..models.posterior import AbstractPosterior
from .dynamics import Curvature, DynamicsStep, Evaluate, Suggestion, reduced_noise, transformed
from .metric import AbstractRiemannian, inverse_root
from .momentum import AbstractWithMomentum, MomentumState


class RiemannianHamiltonian(AbstractRiemannian, AbstractWithMomentum):
    """Riemannian SGHMC.

    **Arguments:**

    - `metric`: "fisher" (generalised linear models), or a function from the parameters to a
      positive definite d×d matrix.
    - `friction`: the friction γ, which multiplies G⁻¹. By default 2d/tr G⁻¹ at `posterior.init`,
      critical damping on average. Table 1 has 1.
    """

    paper = "Ma, Chen and Fox (2015)"
    bias = "The bias at fixed ε is of order ε."

    friction: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.friction is not None:
            check_number("friction", self.friction, 0, low_open=True)

    def filled(self, posterior: AbstractPosterior) -> dict[str, Any]:
        found = super().filled(posterior)
        friction: Any = self.friction
        if friction is None:
            root = inverse_root(found["metric"], posterior.init)
            friction = 2 * posterior.dim / jnp.sum(root**2)
        return {**found, "friction": jnp.asarray(friction, posterior.dtype)}

    def step(
        self, state: MomentumState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        assert self.friction is not None, "`prepare` makes it a number"
        h, momentum = step_size / 2, state.momentum
        estimate = evaluate(state.position, None)
        root = inverse_root(self.metric, state.position)
        position = state.position + h * dot(root, momentum)
        drag = self.friction * dot(root, dot(root.T, momentum))
        drift = self.gamma(state.position) - dot(root.T, estimate.gradient) - drag
        kicks = transformed(estimate.noise, solve_triangular(root, root.T).T)
        injected = reduced_noise(noise, kicks, step_size / (4 * self.friction))
        thermal = jnp.sqrt(step_size * self.friction) * dot(root, injected.noise)
        moved = MomentumState(position, momentum + h * drift + thermal)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)

    def gamma(self, position: Vector) -> Vector:
        """Γ_i = Σ_j ∂R_ji/∂θ_j."""
        return jnp.einsum(
            "jij->i", jax.jacfwd(functools.partial(inverse_root, self.metric))(position)
        )

    def suggest(self, curvature: Curvature) -> Suggestion:
        # The friction in the coordinates of the metric is γ/λ for eigenvalues λ of the metric.
        condition = curvature.metric_largest / curvature.metric_smallest
        smallest_friction = 2 / condition
        rule = "0.4 · smallest / largest curvature"
        step, rule = curvature.within_noise(0.4 / condition, rule, smallest_friction)
        others = {"friction": 2 * curvature.metric_smallest}
        return Suggestion(step, rule, 2 / step, step / smallest_friction, others)
