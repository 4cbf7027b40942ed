"""SGHMC in trajectories (Chen, Fox and Guestrin, 2014): the momentum is drawn afresh every L steps.

    every L steps   ρ ~ N(0, I)
    A    θ ← θ + (ε/4) Cρ
    BOB  ρ ← c (ρ − (ε/4) Cᵀ∇f̂(θ)) + √(1 − c²) ξ − (ε/4) Cᵀ∇f̂(θ),   c = exp(−γε/2),   ξ ~ N(0, I)
    A    θ ← θ + (ε/4) Cρ

Each inner step has a fresh batch: one held through a trajectory adds its noise L times over in the same direction. Its two halves
are mirror images, so that the bias is of order ε² at any L. (With whole Euler kicks in place of that, as it is often written, the
first kick of each trajectory is a half too much: with L = 1 the variance is half of what it should be at any ε, or, if the
position moves first, the gradient never reaches it.) A step here is one inner step; thin by L to keep the ends of trajectories.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._anchor import Needs
from .._errors import check_int, check_number
from .._random import standard_normal
from ..geometry import AbstractGeometry
from .base import AbstractDynamics, AbstractDynamicsState, DynamicsChoice, Evaluate, Moved, Surroundings


class TrajectoryState(AbstractDynamicsState):
    position: Float[Array, " d"]
    momentum: Float[Array, " d"]
    inner: Int[Array, ""]
    """Inner steps since the momentum was drawn."""


class HamiltonianDynamics(AbstractDynamics):
    geometry: AbstractGeometry
    friction: Float[Array, ""]
    length: int = eqx.field(static=True)
    evaluates_at_start = False

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> TrajectoryState:
        return TrajectoryState(position, jnp.zeros_like(position), jnp.int32(0))

    def noise(self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]) -> Float[Array, "steps 2 d"]:
        return standard_normal(key, (steps, 2, *like.shape), like.dtype)

    def step(self, state: TrajectoryState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Float[Array, "2 d"]) -> Moved:
        fresh, injected = noise
        h = step_size / 2
        momentum = jnp.where(state.inner == 0, fresh, state.momentum)
        halfway = state.position + self.geometry.push(h / 2 * momentum)
        estimate = evaluate(halfway, None)
        half_kick = h / 2 * self.geometry.pull(estimate.gradient)
        kept, added = jnp.exp(-self.friction * h), jnp.sqrt(-jnp.expm1(-2 * self.friction * h))
        momentum = kept * (momentum - half_kick) + added * injected - half_kick
        position = halfway + self.geometry.push(h / 2 * momentum)
        return Moved(TrajectoryState(position, momentum, (state.inner + 1) % self.length), estimate, {})


@dataclasses.dataclass(frozen=True)
class Hamiltonian(DynamicsChoice):
    """Choose SGHMC in trajectories of `length` inner steps, with this friction (γ, may be zero)."""

    length: int
    friction: float = 0.0
    needs = Needs.NOTHING
    exact_only = False
    takes_geometry = True
    corrects_through = ()
    has_transition = False

    def __post_init__(self) -> None:
        check_int("length", self.length, 1)
        check_number("friction", self.friction, 0)

    def prepare(self, around: Surroundings) -> HamiltonianDynamics:
        return HamiltonianDynamics(around.geometry, jnp.asarray(self.friction, around.posterior.dtype), self.length)
