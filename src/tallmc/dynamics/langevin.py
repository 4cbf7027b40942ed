"""Overdamped Langevin dynamics by Euler–Maruyama: SGLD, or ULA with the exact gradient.

    θ' = θ − (ε/2) CCᵀ∇f̂(θ) + √ε Cη,   η ~ N(0, I)

This is putcha-2023, eqs. 2 and 4 (there C = I). The chain is stable for ε < 4σ² in the narrowest
direction.
"""

from __future__ import annotations

import jax.numpy as jnp

from .._core.arrays import Scalar, Vector
from ..subsample.selection import Transition
from .dynamics import AbstractDynamics, DynamicsStep, Evaluate, PositionState, reduced_noise


class Langevin(AbstractDynamics):
    """Overdamped Langevin dynamics."""

    paper = "Welling and Teh (2011)"
    bias = (
        "The bias at fixed ε is of order ε. On a Gaussian with variance σ² the stationary variance "
        "is σ²(1 + εv/4)/(1 − ε/4σ²), where v = Var ∇f̂: the denominator is discretisation error, "
        "the numerator gradient noise."
    )
    has_transition = True

    def step(
        self, state: PositionState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        root = jnp.sqrt(step_size)

        def to_zero() -> Vector:
            return -self.geometry.solve(state.position) / root

        transition = Transition(jnp.zeros_like(noise), to_zero, root / 2, self.geometry)
        estimate = evaluate(state.position, transition)
        injected = reduced_noise(noise, estimate.noise, step_size / 4)
        move = root * injected.noise - step_size / 2 * self.geometry.pull(estimate.gradient)
        moved = PositionState(state.position + self.geometry.push(move))
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)
