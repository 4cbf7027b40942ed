"""The stochastic gradient Nosé–Hoover thermostat, SGNHT (Ding et al., 2014): friction that adapts to gradient noise.

    θ' = θ + (ε/2) Cρ
    ρ' = ρ − (ε/2) (Cᵀ∇f̂(θ) + ηρ) + √(εA) ξ,   ξ ~ N(0, I)
    η' = η + (ε/2) (ρᵀρ/d − 1)                                   nemeth-2021, Table 1 (SGNHT) with a = 1/d, by eq. 11

The thermostat η rises while the momenta are hotter than N(0, I), which is what gradient noise does, and falls while they are
colder: noise alike in all directions is absorbed without being known, η settling at A + (ε/4)v. Noise that differs by direction
is absorbed on average only. Biased at any fixed ε, of order ε. ‖ρ‖², not ‖ρ‖; the −1 is Γ.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Needs
from .._errors import check_number
from .._random import standard_normal
from ..geometry import AbstractGeometry
from .base import AbstractDiffusion, AbstractDynamicsState, DynamicsChoice, Evaluate, Moved, Surroundings


class ThermostatState(AbstractDynamicsState):
    position: Float[Array, " d"]
    momentum: Float[Array, " d"]
    thermostat: Float[Array, ""]


class NoseHooverDynamics(AbstractDiffusion):
    geometry: AbstractGeometry
    friction: Float[Array, ""]
    evaluates_at_start = False

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> ThermostatState:
        return ThermostatState(position, standard_normal(key, position.shape, position.dtype), self.friction)

    def step(self, state: ThermostatState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Float[Array, " d"]) -> Moved:
        h, momentum = step_size / 2, state.momentum
        estimate = evaluate(state.position, None)
        position = state.position + self.geometry.push(h * momentum)
        thermostat = state.thermostat + h * (jnp.mean(momentum**2) - 1)
        force = self.geometry.pull(estimate.gradient) + state.thermostat * momentum
        momentum = momentum - h * force + jnp.sqrt(2 * self.friction * h) * noise
        stats = {"thermostat": thermostat, "temperature": jnp.mean(momentum**2)}
        return Moved(ThermostatState(position, momentum, thermostat), estimate, stats)


@dataclasses.dataclass(frozen=True)
class NoseHoover(DynamicsChoice):
    """Choose the Nosé–Hoover thermostat; `friction` is A, the friction it has when there is no gradient noise."""

    friction: float
    needs = Needs.NOTHING
    exact_only = False
    takes_geometry = True
    corrects_through = ()
    has_transition = False

    def __post_init__(self) -> None:
        check_number("friction", self.friction, 0, low_open=True)

    def prepare(self, around: Surroundings) -> NoseHooverDynamics:
        return NoseHooverDynamics(around.geometry, jnp.asarray(self.friction, around.posterior.dtype))
