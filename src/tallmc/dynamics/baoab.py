"""Underdamped Langevin dynamics by splitting (Leimkuhler and Matthews, 2013): BAOAB.

    B   ρ ← ρ − (ε/2) Cᵀ∇f̂(θ)
    A   θ ← θ + (ε/4) Cρ
    O   ρ ← cρ + √(1 − c²) ξ,   c = exp(−γε/2),   ξ ~ N(0, I)
    A   θ ← θ + (ε/4) Cρ

BAOAB has a half kick B at each end of a step. Here the last half kick of a step and the first one
of the next step are one full kick, which takes one gradient per step. The stationary law of the
positions does not change. Friction is solved exactly: any γ is stable, and γ → ∞ gives
Leimkuhler–Matthews dynamics with step size ε²/4.

Gradient noise of covariance V is corrected by ξ ~ N(0, I − (1 + c)²/(1 − c²) (ε²/16) V). The kick
comes before the noise within a step, so a share of order ε² of the excess variance remains.

For exponential weights (li-2021, footnote 2) the move is described by its momentum alone, since the
pair (θ', ρ') has no density ratio (`subsample/exponential.py`).
"""

from __future__ import annotations

from .._core.arrays import Scalar, Vector
from .dynamics import DynamicsStep, Evaluate, reduced_noise
from .momentum import AbstractWithExactFriction, MomentumState, damped_transition, damping


class BAOAB(AbstractWithExactFriction):
    """Underdamped Langevin dynamics by the BAOAB splitting; `friction` is γ."""

    paper = "Leimkuhler and Matthews (2013)"
    bias = (
        "The bias is of order ε². On a Gaussian with exact gradients the positions have no bias at "
        "any stable ε < 4/√λ."
    )
    has_transition = True

    def step(
        self, state: MomentumState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        h = step_size / 2
        friction = damping(self.friction, h)
        transition = damped_transition(state.momentum, friction, friction.decay * h, self.geometry)
        estimate = evaluate(state.position, transition)
        kicked = state.momentum - h * self.geometry.pull(estimate.gradient)
        injected = reduced_noise(noise, estimate.noise, friction.share)
        damped = friction.decay * kicked + friction.sd * injected.noise
        position = state.position + self.geometry.push(h / 2 * (kicked + damped))
        moved = MomentumState(position, damped)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)
