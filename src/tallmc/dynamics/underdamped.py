"""Underdamped Langevin dynamics, Euler–Maruyama: the papers' SGHMC, called SGULD in li-2021 (eq. 3).

    θ' = θ + (ε/2) Cρ
    ρ' = ρ − (ε/2) (Cᵀ∇f̂(θ) + γρ) + √(εγ) ξ,   ξ ~ N(0, I)                          nemeth-2021, Table 1 (SGHMC), by eq. 11

γ is the friction, CCᵀ the inverse mass matrix; li-2021's h is ε/2. Biased at any fixed ε, of order ε; both lines use the old
state, which makes it unstable unless ε/2 < γ/λ in every direction of curvature λ. With γ ≫ √λ it is Langevin dynamics with step
ε/γ. Critical damping, γ = 2√λ, mixes fastest in a direction of curvature λ.

Gradient noise can be corrected by injecting less noise, ξ ~ N(0, I − (ε/4γ)V), or by more friction, γ + (ε/4)V (li-2021, app. F).
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Needs
from .._errors import check_number
from ..correction import drag, shrunk
from ..geometry import AbstractGeometry
from ..subsample.selection import Transition
from .base import AbstractDiffusion, DynamicsChoice, Evaluate, Moved, Surroundings
from .momentum import MomentumState, with_momentum


class UnderdampedDynamics(AbstractDiffusion):
    geometry: AbstractGeometry
    friction: Float[Array, ""]
    adds_friction: bool = eqx.field(static=True)
    """Whether gradient noise is corrected by friction, not by less noise."""
    evaluates_at_start = False

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> MomentumState:
        return with_momentum(key, position)

    def step(self, state: MomentumState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Float[Array, " d"]) -> Moved:
        h, momentum = step_size / 2, state.momentum
        sd = jnp.sqrt(2 * self.friction * h)
        at_rest = h * self.friction * momentum / sd
        estimate = evaluate(state.position, Transition(at_rest, at_rest - momentum / sd, h / sd, self.geometry))
        added = drag(momentum, estimate.noise if self.adds_friction else None, h)
        injected = shrunk(noise, None if self.adds_friction else estimate.noise, h / (2 * self.friction))
        position = state.position + self.geometry.push(h * momentum)
        force = self.geometry.pull(estimate.gradient) + self.friction * momentum + added.force
        momentum = momentum - h * force + sd * injected.noise
        return Moved(MomentumState(position, momentum), estimate, injected.stats, jnp.maximum(injected.outcome, added.outcome))


@dataclasses.dataclass(frozen=True)
class Underdamped(DynamicsChoice):
    """Choose underdamped Langevin dynamics in the papers' Euler form, with this friction (γ)."""

    friction: float
    needs = Needs.NOTHING
    exact_only = False
    takes_geometry = True
    corrects_through = ("noise", "friction")
    has_transition = True

    def __post_init__(self) -> None:
        check_number("friction", self.friction, 0, low_open=True)

    def prepare(self, around: Surroundings) -> UnderdampedDynamics:
        adds_friction = around.correction is not None and around.correction.through == "friction"
        return UnderdampedDynamics(around.geometry, jnp.asarray(self.friction, around.posterior.dtype), adds_friction)
