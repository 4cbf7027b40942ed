"""SGHMC in trajectories (Chen, Fox and Guestrin, 2014): a new momentum is drawn every L steps.

    every L steps   ρ ~ N(0, I)
    A    θ ← θ + (ε/4) Cρ
    BOB  ρ ← c (ρ − (ε/4) Cᵀ∇f̂(θ)) + √(1 − c²) ξ − (ε/4) Cᵀ∇f̂(θ),   c = exp(−γε/2),   ξ ~ N(0, I)
    A    θ ← θ + (ε/4) Cρ

Each inner step draws a new batch: a batch kept for a whole trajectory would add its noise L times
in the same direction. The common
form with full Euler kicks makes the first kick of each trajectory a half kick too large: with L = 1
the variance is half the correct one at any ε, or, if the position moves first, the gradient never
reaches the position. A step here is one inner step; thin by L to keep the ends of trajectories.

Without friction nothing removes the energy that gradient noise adds during a trajectory: the excess
variance grows with L. γ = 0 is for exact gradients. With friction, gradient noise of covariance V
is corrected by ξ ~ N(0, I − (1 + c)²/(1 − c²) (ε²/16) V).
"""

from __future__ import annotations

import math
from typing import Any, Self

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._core.arrays import Scalar, Vector
from .._core.errors import check_int, check_number
from .._core.random import standard_normal
from ..models.posterior import AbstractPosterior
from .dynamics import (
    AbstractDynamics,
    AbstractDynamicsState,
    Curvature,
    DynamicsStep,
    Evaluate,
    Suggestion,
    merged_normal,
    reduced_noise,
)
from .momentum import damped_transition, damping

_LEAST_LENGTH, _MOST_LENGTH = 10, 1000


class TrajectoryState(AbstractDynamicsState):
    """Position, momentum and place in the trajectory."""

    position: Vector
    momentum: Vector
    inner: Int[Array, ""]  # Inner steps since the momentum was drawn


class Hamiltonian(AbstractDynamics):
    """SGHMC in trajectories.

    **Arguments:**

    - `length`: L, the inner steps per trajectory.
    - `friction`: the friction γ, positive; zero only with exact gradients.
    """

    paper = "Chen, Fox and Guestrin (2014)"
    bias = "The inner step is symmetric, so the bias is of order ε² at any L."

    length: int
    friction: float

    def __post_init__(self) -> None:
        check_int("length", self.length, 1)
        check_number("friction", self.friction, 0)

    @property
    def has_transition(self) -> bool:
        """Without friction the move given a gradient is deterministic and has no density."""
        return self.friction > 0

    @property
    def corrects_through(self) -> tuple[str, ...]:
        return ("noise",) if self.friction > 0 else ()

    def filled(self, posterior: AbstractPosterior) -> dict[str, Any]:
        return {"length": jnp.int32(self.length)}

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> TrajectoryState:
        return TrajectoryState(position, jnp.zeros_like(position), jnp.int32(0))

    def noise(self, key: PRNGKeyArray, steps: int, like: Vector) -> Float[Array, "steps 2 d"]:
        return standard_normal(key, (steps, 2, *like.shape), like.dtype)

    def finer(self) -> Self:
        return self._with(length=2 * self.length)

    def merged_noise(
        self, first: Float[Array, "2 d"], second: Float[Array, "2 d"]
    ) -> Float[Array, "2 d"]:
        # The fine trajectory begins with the first of two fine steps.
        return jnp.stack([first[0], merged_normal(first[1], second[1])])

    def step(
        self,
        state: TrajectoryState,
        evaluate: Evaluate,
        step_size: Scalar,
        noise: Float[Array, "2 d"],
    ) -> DynamicsStep:
        fresh, normal = noise
        h = step_size / 2
        momentum = jnp.where(state.inner == 0, fresh, state.momentum)
        halfway = state.position + self.geometry.push(h / 2 * momentum)
        friction = damping(self.friction, h)
        kick = (1 + friction.decay) * h / 2
        estimate = evaluate(halfway, damped_transition(momentum, friction, kick, self.geometry))
        half_kick = h / 2 * self.geometry.pull(estimate.gradient)
        injected = reduced_noise(normal, estimate.noise, friction.share)
        thermal = friction.sd * injected.noise
        momentum = friction.decay * (momentum - half_kick) + thermal - half_kick
        position = halfway + self.geometry.push(h / 2 * momentum)
        moved = TrajectoryState(position, momentum, (state.inner + 1) % self.length)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)

    def suggest(self, curvature: Curvature) -> Suggestion:
        slowest = curvature.smallest**0.5
        friction = 2 * slowest
        rule = "1 / root of the largest curvature"
        step, rule = curvature.within_noise(curvature.largest**-0.5, rule, friction)
        # A quarter of the slowest oscillation.
        length = min(max(math.ceil(math.pi / (step * slowest)), _LEAST_LENGTH), _MOST_LENGTH)
        others = {"length": length, "friction": friction}
        return Suggestion(step, rule, length, step / friction, others)
