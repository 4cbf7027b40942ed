"""Langevin dynamics with averaged noise (Leimkuhler and Matthews, 2013), one gradient per step.

    θ' = θ − (ε/2) CCᵀ∇f̂(θ) + (√ε/2) C(η + η'),   η' new, η the noise of the previous step

The noise correction is η ~ N(0, I − (ε/4)V). Each η moves the chain by √ε η in total, so this
removes what the gradient noise of one step adds. On a Gaussian a share ελ/4 of the excess remains.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from .._core.arrays import Scalar, Vector
from .._core.random import standard_normal
from .dynamics import AbstractDynamics, AbstractDynamicsState, DynamicsStep, Evaluate, reduced_noise


class AveragedNoiseState(AbstractDynamicsState):
    """Position θ and η, the noise of the previous step."""

    position: Vector
    noise: Vector


class LeimkuhlerMatthews(AbstractDynamics):
    """Langevin dynamics with averaged noise."""

    paper = "Leimkuhler and Matthews (2013)"
    bias = (
        "The bias of the stationary law is of order ε², one order better than Euler–Maruyama. On a "
        "Gaussian with exact gradients there is no bias at any stable ε. Gradient noise of "
        "variance v still widens the law: on a Gaussian by a factor of about 1 + εv/4."
    )

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> AveragedNoiseState:
        return AveragedNoiseState(position, standard_normal(key, position.shape, position.dtype))

    def step(
        self, state: AveragedNoiseState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        estimate = evaluate(state.position, None)
        injected = reduced_noise(noise, estimate.noise, step_size / 4)
        drift = -step_size / 2 * self.geometry.pull(estimate.gradient)
        move = drift + jnp.sqrt(step_size) / 2 * (state.noise + injected.noise)
        moved = AveragedNoiseState(state.position + self.geometry.push(move), injected.noise)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)
