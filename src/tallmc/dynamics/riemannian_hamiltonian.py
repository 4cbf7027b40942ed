"""Riemannian SGHMC, SGRHMC (Ma, Chen and Fox, 2015): underdamped dynamics that follows a metric G(θ).

    θ' = θ + (ε/2) Rρ
    ρ' = ρ + (ε/2) (Γ(θ) − Rᵀ∇f̂(θ) − γG⁻¹ρ) + √(εγ) Rξ,   RRᵀ = G⁻¹,   Γ_i = Σ_j ∂R_ji/∂θ_j    nemeth-2021, Table 1, by eq. 11

Table 1's G^(−1/2) is any R with RRᵀ = G⁻¹: the curl [[0, −R], [Rᵀ, 0]] is skew-symmetric for each; it has γ = 1, which is no
friction to speak of where G is large. Biased at any fixed ε, of order ε. O(d³) a step and d derivatives of the metric: for few
dimensions.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Needs
from .._errors import check_number
from .._rows import dot
from .base import AbstractDiffusion, DynamicsChoice, Evaluate, Moved, Surroundings
from .metric import AbstractMetric, check_metric, prepare_metric
from .momentum import MomentumState, with_momentum


class RiemannianHamiltonianDynamics(AbstractDiffusion):
    metric: AbstractMetric
    friction: Float[Array, ""]
    evaluates_at_start = False

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> MomentumState:
        return with_momentum(key, position)

    def step(self, state: MomentumState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Float[Array, " d"]) -> Moved:
        h, momentum = step_size / 2, state.momentum
        estimate = evaluate(state.position, None)
        root = self.metric.inverse_root(state.position)
        position = state.position + h * dot(root, momentum)
        drag = self.friction * dot(root, dot(root.T, momentum))
        drift = self.gamma(state.position) - dot(root.T, estimate.gradient) - drag
        momentum = momentum + h * drift + jnp.sqrt(step_size * self.friction) * dot(root, noise)
        return Moved(MomentumState(position, momentum), estimate, {})

    def gamma(self, position: Float[Array, " d"]) -> Float[Array, " d"]:
        """Γ_i = Σ_j ∂R_ji/∂θ_j."""
        return jnp.einsum("jij->i", jax.jacfwd(self.metric.inverse_root)(position))


@dataclasses.dataclass(frozen=True)
class RiemannianHamiltonian(DynamicsChoice):
    """Choose SGRHMC with this metric: "fisher" (generalised linear models) or a function from parameters to a d×d matrix.

    `friction` multiplies G⁻¹; Table 1 has 1.
    """

    metric: Any = "fisher"
    friction: float = 1.0
    needs = Needs.NOTHING
    exact_only = False
    takes_geometry = False
    corrects_through = ()
    has_transition = False

    def __post_init__(self) -> None:
        check_metric(self.metric)
        check_number("friction", self.friction, 0, low_open=True)

    def prepare(self, around: Surroundings) -> RiemannianHamiltonianDynamics:
        metric = prepare_metric(self.metric, around.posterior)
        return RiemannianHamiltonianDynamics(metric, jnp.asarray(self.friction, around.posterior.dtype))
