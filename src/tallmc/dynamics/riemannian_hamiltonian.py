"""Riemannian SGHMC, SGRHMC (Ma, Chen and Fox, 2015): underdamped dynamics in a metric G(θ).

    θ' = θ + (ε/2) Rρ
    ρ' = ρ + (ε/2) (Γ(θ) − Rᵀ∇f̂(θ) − γG⁻¹ρ) + √(εγ) Rξ,   RRᵀ = G⁻¹,   Γ_i = Σ_j ∂R_ji/∂θ_j

This is nemeth-2021, Table 1, by eq. 11. The G^(−1/2) of Table 1 can be any R with RRᵀ = G⁻¹, since
the curl [[0, −R], [Rᵀ, 0]] is skew-symmetric for any R. The bias at fixed ε is of order ε. A step
costs O(d³) and d derivatives of the metric, so the method is for few dimensions.

With G near the curvature of f, all frequencies of (θ, ρ) are near 1, and a friction of 2 is
critical damping. The friction here is the matrix γG⁻¹. Table 1 has γ = 1, which is a friction of
order 1/N where G grows with N: such a chain does not mix. By default γ = 2d/tr G⁻¹ at `init`, so
that the mean friction is 2.

Gradient noise of covariance V is corrected by ξ ~ N(0, I − (ε/4γ)R⁻¹RᵀVRR⁻ᵀ).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..core.errors import check_number
from ..core.linear_maps import dot
from ..correction import reduced_noise, transformed
from .base import (
    AbstractDiffusion,
    Curvature,
    DynamicsChoice,
    DynamicsContext,
    DynamicsStep,
    Evaluate,
    Suggestion,
    smaller_step,
)
from .metric import AbstractMetric, check_metric, inverse_root_of, prepare_metric
from .momentum import MomentumState, with_momentum


class RiemannianHamiltonianDynamics(AbstractDiffusion):
    """Riemannian SGHMC prepared for one posterior.

    **Arguments:**

    - `metric`: the metric G(θ) as a function of the flat position.
    - `friction`: the friction γ, which multiplies G⁻¹.

    >>> import tallmc
    >>> tallmc.dynamics.RiemannianHamiltonianDynamics.evaluates_at_start
    False
    """

    metric: AbstractMetric
    friction: Float[Array, ""]
    evaluates_at_start = False

    def init(
        self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate
    ) -> MomentumState:
        return with_momentum(key, position)

    def step(
        self,
        state: MomentumState,
        evaluate: Evaluate,
        step_size: Float[Array, ""],
        noise: Float[Array, " d"],
    ) -> DynamicsStep:
        h, momentum = step_size / 2, state.momentum
        estimate = evaluate(state.position, None)
        root = self.metric.inverse_root(state.position)
        position = state.position + h * dot(root, momentum)
        drag = self.friction * dot(root, dot(root.T, momentum))
        drift = self.gamma(state.position) - dot(root.T, estimate.gradient) - drag
        kicks = transformed(estimate.noise, solve_triangular(root, root.T).T)
        injected = reduced_noise(noise, kicks, step_size / (4 * self.friction))
        thermal = jnp.sqrt(step_size * self.friction) * dot(root, injected.noise)
        moved = MomentumState(position, momentum + h * drift + thermal)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)

    def gamma(self, position: Float[Array, " d"]) -> Float[Array, " d"]:
        """Γ_i = Σ_j ∂R_ji/∂θ_j."""
        return jnp.einsum("jij->i", jax.jacfwd(self.metric.inverse_root)(position))


@dataclasses.dataclass(frozen=True)
class RiemannianHamiltonian(DynamicsChoice):
    """Riemannian SGHMC.

    **Arguments:**

    - `metric`: "fisher" (generalised linear models), or a function from the parameters to a
      positive definite d×d matrix.
    - `friction`: the friction γ, which multiplies G⁻¹. By default 2d/tr G⁻¹ at `posterior.init`,
      critical damping on average. Table 1 has 1.

    **Raises:** `InvalidInput` if `metric` is neither "fisher" nor a function, or if `friction` is
    not positive.

    >>> import tallmc
    >>> tallmc.dynamics.RiemannianHamiltonian(friction=2.0)
    RiemannianHamiltonian(metric='fisher', friction=2.0)
    """

    metric: Any = "fisher"
    friction: float | None = None
    needs = AnchorLevel.NOTHING
    exact_only = False
    takes_geometry = False
    corrects_through = ("noise",)
    has_transition = False

    def __post_init__(self) -> None:
        check_metric(self.metric)
        if self.friction is not None:
            check_number("friction", self.friction, 0, low_open=True)

    def suggest(self, curvature: Curvature) -> Suggestion:
        # The friction in the coordinates of the metric is γ/λ for eigenvalues λ of the metric.
        condition = curvature.metric_largest / curvature.metric_smallest
        smallest_friction = 2 / condition
        step, rule = smaller_step(
            0.4 / condition,
            "0.4 · smallest / largest curvature",
            smallest_friction * curvature.noise_limit,
        )
        others = {"friction": 2 * curvature.metric_smallest}
        return Suggestion(step, rule, 2 / step, step / smallest_friction, others)

    def own_coordinates(self, hessian: np.ndarray, noise: np.ndarray, n_rows: int) -> np.ndarray:
        return inverse_root_of(hessian)

    def prepare(self, context: DynamicsContext) -> RiemannianHamiltonianDynamics:
        posterior = context.posterior
        metric = prepare_metric(self.metric, posterior)
        friction = (
            2 * posterior.dim / jnp.sum(metric.inverse_root(posterior.init) ** 2)
            if self.friction is None
            else self.friction
        )
        return RiemannianHamiltonianDynamics(metric, jnp.asarray(friction, posterior.dtype))
