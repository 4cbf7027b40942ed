"""The geometric Langevin algorithm, GLA (Bou-Rabee and Owhadi, 2010): Verlet and exact friction.

    BOB  ρ ← cρ − (1 + c)(ε/4) Cᵀ∇f̂(θ) + √(1 − c²) ξ,   c = exp(−γε/2),   ξ ~ N(0, I)
    A    θ ← θ + (ε/2) Cρ

GLA alternates a Verlet step BAB with the exact solution O of friction and noise. Here a step begins
before the last half kick B of the Verlet step: the two half kicks at the same position share one
gradient. The positions are those of GLA. Verlet steps keep the quadratic form
‖ρ‖² + λ(1 − ε²λ/16)θ² on a Gaussian of curvature λ, and O keeps ρ ~ N(0, I). The stationary
variance with exact gradients is therefore

    1 / (λ (1 − ε²λ/16)),   for ε < 4/√λ.

The gradient and the noise enter ρ in the same substep, and the new position is a function of the
new momentum. The density of a move given a gradient exists, which exponential weights need
(`Transition`; li-2021, footnote 2). Gradient noise of covariance V is corrected by
ξ ~ N(0, I − (1 + c)²/(1 − c²) (ε²/16) V); the move then has the covariance of an exact one.
"""

from __future__ import annotations

from .._core.arrays import Scalar, Vector
from .dynamics import DynamicsStep, Evaluate, reduced_noise
from .momentum import AbstractWithExactFriction, MomentumState, damped_transition, damping


class GeometricLangevin(AbstractWithExactFriction):
    """Underdamped Langevin dynamics by the geometric Langevin algorithm; `friction` is γ."""

    paper = "Bou-Rabee and Owhadi (2010)"
    bias = "The bias is of order ε²."
    has_transition = True

    def step(
        self, state: MomentumState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        h = step_size / 2
        friction = damping(self.friction, h)
        kick = (1 + friction.decay) * h / 2
        transition = damped_transition(state.momentum, friction, kick, self.geometry)
        estimate = evaluate(state.position, transition)
        injected = reduced_noise(noise, estimate.noise, friction.share)
        kicked = friction.decay * state.momentum - kick * self.geometry.pull(estimate.gradient)
        momentum = kicked + friction.sd * injected.noise
        position = state.position + self.geometry.push(h * momentum)
        moved = MomentumState(position, momentum)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)
