"""The stochastic gradient Nosé–Hoover thermostat, SGNHT (Ding et al., 2014): adaptive friction.

    θ' = θ + (ε/2) Cρ
    ρ' = ρ − (ε/2) (Cᵀ∇f̂(θ) + ηρ) + √(εA) ξ,   ξ ~ N(0, I)
    η' = η + (ε/2) (ρᵀρ/d − 1)

This is nemeth-2021, Table 1 (SGNHT) with a = 1/d, by eq. 11. The update of η uses ‖ρ‖², not ‖ρ‖,
and its −1 is Γ. The thermostat η rises while the momenta are hotter than N(0, I), which is the
effect of gradient noise, and falls while they are colder. Gradient noise that is equal in all
directions is absorbed without being known: η settles at A + (ε/4)v. Noise that differs between
directions is absorbed on average only, unless it is corrected by ξ ~ N(0, I − (ε/4A)V).
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from .._core.arrays import Scalar, Vector
from .dynamics import AbstractDynamicsState, DynamicsStep, Evaluate, reduced_noise
from .momentum import AbstractWithFriction, with_momentum


class ThermostatState(AbstractDynamicsState):
    """Position θ, momentum ρ and thermostat η."""

    position: Vector
    momentum: Vector
    thermostat: Scalar


class NoseHoover(AbstractWithFriction):
    """Nosé–Hoover thermostat.

    **Arguments:**

    - `friction`: A, the friction without gradient noise.
    """

    paper = "Ding, Fang, Babbush, Chen, Skeel and Neven (2014)"
    bias = "The bias at fixed ε is of order ε."

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> ThermostatState:
        start = with_momentum(key, position)
        return ThermostatState(start.position, start.momentum, jnp.asarray(self.friction))

    def step(
        self, state: ThermostatState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        h, momentum = step_size / 2, state.momentum
        estimate = evaluate(state.position, None)
        position = state.position + self.geometry.push(h * momentum)
        thermostat = state.thermostat + h * (jnp.mean(momentum**2) - 1)
        force = self.geometry.pull(estimate.gradient) + state.thermostat * momentum
        injected = reduced_noise(noise, estimate.noise, h / (2 * self.friction))
        momentum = momentum - h * force + jnp.sqrt(2 * self.friction * h) * injected.noise
        stats = {"thermostat": thermostat, "temperature": jnp.mean(momentum**2), **injected.stats}
        moved = ThermostatState(position, momentum, thermostat)
        return DynamicsStep(moved, estimate, stats, injected.outcome)
