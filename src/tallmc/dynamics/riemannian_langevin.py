"""Riemannian Langevin dynamics, SGRLD (Patterson and Teh, 2013): Langevin in a metric G(θ).

    θ' = θ + (ε/2) (Γ(θ) − G⁻¹∇f̂(θ)) + √ε Rη,   RRᵀ = G⁻¹,   Γ_i = Σ_j ∂(G⁻¹)_ij/∂θ_j

This is nemeth-2021, Table 1, by eq. 11 (as printed, eq. 11 has the wrong sign of Γ; eq. 10 is
right). The bias at fixed ε is of order ε. A step costs O(d³) and d derivatives of the metric, so
the method is for few dimensions. Gradient noise of covariance V is corrected by
η ~ N(0, I − (ε/4)RᵀVR).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
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
    overdamped_suggestion,
)
from .langevin import LangevinState
from .metric import AbstractMetric, check_metric, inverse_root_of, prepare_metric


class RiemannianLangevinDynamics(AbstractDiffusion):
    """Riemannian Langevin dynamics prepared for one posterior.

    **Arguments:**

    - `metric`: the metric G(θ) as a function of the flat position.

    >>> import tallmc
    >>> tallmc.dynamics.RiemannianLangevinDynamics.evaluates_at_start
    False
    """

    metric: AbstractMetric
    evaluates_at_start = False

    def init(
        self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate
    ) -> LangevinState:
        return LangevinState(position)

    def step(
        self,
        state: LangevinState,
        evaluate: Evaluate,
        step_size: Float[Array, ""],
        noise: Float[Array, " d"],
    ) -> DynamicsStep:
        estimate = evaluate(state.position, None)
        root = self.metric.inverse_root(state.position)
        drift = self.gamma(state.position) - dot(root, dot(root.T, estimate.gradient))
        injected = reduced_noise(noise, transformed(estimate.noise, root), step_size / 4)
        move = step_size / 2 * drift + jnp.sqrt(step_size) * dot(root, injected.noise)
        moved = LangevinState(state.position + move)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)

    def gamma(self, position: Float[Array, " d"]) -> Float[Array, " d"]:
        """Γ_i = Σ_j ∂(G⁻¹)_ij/∂θ_j."""

        def inverse(at: Float[Array, " d"]) -> Float[Array, "d d"]:
            root = self.metric.inverse_root(at)
            return dot(root, root.T)

        return jnp.einsum("ijj->i", jax.jacfwd(inverse)(position))


@dataclasses.dataclass(frozen=True)
class RiemannianLangevin(DynamicsChoice):
    """Riemannian Langevin dynamics.

    **Arguments:**

    - `metric`: "fisher" (generalised linear models), or a function from the parameters to a
      positive definite d×d matrix.

    **Raises:** `InvalidInput` if `metric` is neither "fisher" nor a function.

    >>> import tallmc
    >>> tallmc.dynamics.RiemannianLangevin("fisher").takes_geometry
    False
    """

    metric: Any = "fisher"
    needs = AnchorLevel.NOTHING
    exact_only = False
    takes_geometry = False
    corrects_through = ("noise",)
    has_transition = False

    def __post_init__(self) -> None:
        check_metric(self.metric)

    def suggest(self, curvature: Curvature) -> Suggestion:
        return overdamped_suggestion(curvature)

    def own_coordinates(self, hessian: np.ndarray, noise: np.ndarray, n_rows: int) -> np.ndarray:
        return inverse_root_of(hessian)

    def prepare(self, context: DynamicsContext) -> RiemannianLangevinDynamics:
        return RiemannianLangevinDynamics(prepare_metric(self.metric, context.posterior))
