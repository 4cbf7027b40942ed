"""The stochastic gradient Nosé–Hoover thermostat, SGNHT (Ding et al., 2014): adaptive friction.

    θ' = θ + (ε/2) Cρ
    ρ' = ρ − (ε/2) (Cᵀ∇f̂(θ) + ηρ) + √(εA) ξ,   ξ ~ N(0, I)
    η' = η + (ε/2) (ρᵀρ/d − 1)

This is nemeth-2021, Table 1 (SGNHT) with a = 1/d, by eq. 11. The update of η uses ‖ρ‖², not ‖ρ‖,
and its −1 is Γ. The thermostat η rises while the momenta are hotter than N(0, I), which is the
effect of gradient noise, and falls while they are colder. Gradient noise that is equal in all
directions is absorbed without being known: η settles at A + (ε/4)v. Noise that differs between
directions is absorbed on average only, unless it is corrected by ξ ~ N(0, I − (ε/4A)V).

All three lines use the old state, so the chain is stable only if ε/2 < η/λ in every direction of
curvature λ. With `momentum_first`, θ and η move with the new momentum ρ', the order of the R
package sgmcmc (Baker et al., 2019):

    ρ' as above,   θ' = θ + (ε/2) Cρ',   η' = η + (ε/2) (ρ'ᵀρ'/d − 1)

This is stable for (ε/2)²λ < 2(2 − ηε/2), which allows far larger steps if the friction is small.
"""

from __future__ import annotations

import equinox as eqx
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
    - `momentum_first`: whether position and thermostat move with the new momentum.
    """

    paper = "Ding, Fang, Babbush, Chen, Skeel and Neven (2014)"
    bias = "The bias at fixed ε is of order ε."

    momentum_first: bool = eqx.field(default=False, static=True)

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> ThermostatState:
        start = with_momentum(key, position)
        return ThermostatState(start.position, start.momentum, jnp.asarray(self.friction))

    def step(
        self, state: ThermostatState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        h, momentum = step_size / 2, state.momentum
        estimate = evaluate(state.position, None)
        force = self.geometry.pull(estimate.gradient) + state.thermostat * momentum
        injected = reduced_noise(noise, estimate.noise, h / (2 * self.friction))
        momentum = momentum - h * force + jnp.sqrt(2 * self.friction * h) * injected.noise
        moving = momentum if self.momentum_first else state.momentum
        position = state.position + self.geometry.push(h * moving)
        thermostat = state.thermostat + h * (jnp.mean(moving**2) - 1)
        stats = {"thermostat": thermostat, "temperature": jnp.mean(momentum**2), **injected.stats}
        moved = ThermostatState(position, momentum, thermostat)
        return DynamicsStep(moved, estimate, stats, injected.outcome)
