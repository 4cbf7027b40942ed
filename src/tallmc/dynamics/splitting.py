"""Underdamped Langevin dynamics by splitting (Leimkuhler and Matthews, 2013): BAOAB with one gradient a step.

    B   ρ ← ρ − (ε/2) Cᵀ∇f̂(θ)
    A   θ ← θ + (ε/4) Cρ
    O   ρ ← cρ + √(1 − c²) ξ,   c = exp(−γε/2),   ξ ~ N(0, I)
    A   θ ← θ + (ε/4) Cρ

The two half kicks B that BAOAB puts around a step are here one whole kick at its start: the positions are the same, and so is
their law. Its bias is of order ε², and on a Gaussian with exact gradients the positions have none at any stable ε < 4/√λ.
Friction is solved exactly: any γ is stable, and γ → ∞ gives Leimkuhler–Matthews dynamics with step ε²/4.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Needs
from .._errors import check_number
from ..geometry import AbstractGeometry
from .base import AbstractDiffusion, DynamicsChoice, Evaluate, Moved, Surroundings
from .momentum import MomentumState, with_momentum


class SplittingDynamics(AbstractDiffusion):
    geometry: AbstractGeometry
    friction: Float[Array, ""]
    evaluates_at_start = False

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> MomentumState:
        return with_momentum(key, position)

    def step(self, state: MomentumState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Float[Array, " d"]) -> Moved:
        h = step_size / 2
        estimate = evaluate(state.position, None)
        kicked = state.momentum - h * self.geometry.pull(estimate.gradient)
        damped = jnp.exp(-self.friction * h) * kicked + jnp.sqrt(-jnp.expm1(-2 * self.friction * h)) * noise
        position = state.position + self.geometry.push(h / 2 * (kicked + damped))
        return Moved(MomentumState(position, damped), estimate, {})


@dataclasses.dataclass(frozen=True)
class Splitting(DynamicsChoice):
    """Choose underdamped Langevin dynamics by splitting, with this friction (γ)."""

    friction: float
    needs = Needs.NOTHING
    exact_only = False
    takes_geometry = True
    corrects_through = ()
    has_transition = False

    def __post_init__(self) -> None:
        check_number("friction", self.friction, 0, low_open=True)

    def prepare(self, around: Surroundings) -> SplittingDynamics:
        return SplittingDynamics(around.geometry, jnp.asarray(self.friction, around.posterior.dtype))
