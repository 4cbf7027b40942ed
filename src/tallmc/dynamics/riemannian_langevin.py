"""Riemannian Langevin dynamics, SGRLD (Patterson and Teh, 2013): Langevin dynamics that follows a metric G(θ).

    θ' = θ + (ε/2) (Γ(θ) − G⁻¹∇f̂(θ)) + √ε Rη,   RRᵀ = G⁻¹,   Γ_i = Σ_j ∂(G⁻¹)_ij/∂θ_j        nemeth-2021, Table 1, by eq. 11

(eq. 11 as printed has the sign of Γ wrong; eq. 10 is right.) Biased at any fixed ε, of order ε. O(d³) a step and d derivatives of
the metric: for few dimensions.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Needs
from .._rows import dot
from .base import AbstractDiffusion, DynamicsChoice, Evaluate, Moved, Surroundings
from .langevin import LangevinState
from .metric import AbstractMetric, check_metric, prepare_metric


class RiemannianLangevinDynamics(AbstractDiffusion):
    metric: AbstractMetric
    evaluates_at_start = False

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> LangevinState:
        return LangevinState(position)

    def step(self, state: LangevinState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Float[Array, " d"]) -> Moved:
        estimate = evaluate(state.position, None)
        root = self.metric.inverse_root(state.position)
        drift = self.gamma(state.position) - dot(root, dot(root.T, estimate.gradient))
        position = state.position + step_size / 2 * drift + jnp.sqrt(step_size) * dot(root, noise)
        return Moved(LangevinState(position), estimate, {})

    def gamma(self, position: Float[Array, " d"]) -> Float[Array, " d"]:
        """Γ_i = Σ_j ∂(G⁻¹)_ij/∂θ_j."""

        def inverse(at: Float[Array, " d"]) -> Float[Array, "d d"]:
            root = self.metric.inverse_root(at)
            return dot(root, root.T)

        return jnp.einsum("ijj->i", jax.jacfwd(inverse)(position))


@dataclasses.dataclass(frozen=True)
class RiemannianLangevin(DynamicsChoice):
    """Choose SGRLD with this metric: "fisher" (generalised linear models) or a function from parameters to a d×d matrix."""

    metric: Any = "fisher"
    needs = Needs.NOTHING
    exact_only = False
    takes_geometry = False
    corrects_through = ()
    has_transition = False

    def __post_init__(self) -> None:
        check_metric(self.metric)

    def prepare(self, around: Surroundings) -> RiemannianLangevinDynamics:
        return RiemannianLangevinDynamics(prepare_metric(self.metric, around.posterior))
