"""The stochastic gradient Nosé–Hoover thermostat, SGNHT (Ding et al., 2014): adaptive friction.

    θ' = θ + (ε/2) Cρ
    ρ' = ρ − (ε/2) (Cᵀ∇f̂(θ) + ηρ) + √(εA) ξ,   ξ ~ N(0, I)
    η' = η + (ε/2) (ρᵀρ/d − 1)

This is nemeth-2021, Table 1 (SGNHT) with a = 1/d, by eq. 11. The update of η uses ‖ρ‖², not ‖ρ‖,
and its −1 is Γ. The thermostat η rises while the momenta are hotter than N(0, I), which is the
effect of gradient noise, and falls while they are colder. Gradient noise that is equal in all
directions is absorbed without being known: η settles at A + (ε/4)v. Noise that differs between
directions is absorbed on average only, unless it is corrected by ξ ~ N(0, I − (ε/4A)V). The bias at
fixed ε is of order ε.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..core.errors import check_number
from ..core.linear_maps import AbstractLinearMap
from ..core.random import standard_normal
from ..correction import reduced_noise
from .base import (
    AbstractDiffusion,
    AbstractDynamicsState,
    Curvature,
    DynamicsChoice,
    DynamicsContext,
    DynamicsStep,
    Evaluate,
    Suggestion,
)
from .momentum import kicked_suggestion


class ThermostatState(AbstractDynamicsState):
    """Position θ, momentum ρ and thermostat η."""

    position: Float[Array, " d"]
    momentum: Float[Array, " d"]
    thermostat: Float[Array, ""]


class NoseHooverDynamics(AbstractDiffusion):
    """Nosé–Hoover thermostat prepared for one posterior.

    **Arguments:**

    - `geometry`: the linear map C of the coordinates.
    - `friction`: A, the friction without gradient noise.

    >>> import jax.numpy as jnp, tallmc
    >>> from tallmc.core.linear_maps import IdentityMap
    >>> tallmc.dynamics.NoseHooverDynamics(IdentityMap(), jnp.ones(())).evaluates_at_start
    False
    """

    geometry: AbstractLinearMap
    friction: Float[Array, ""]
    evaluates_at_start = False

    def init(
        self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate
    ) -> ThermostatState:
        return ThermostatState(
            position, standard_normal(key, position.shape, position.dtype), self.friction
        )

    def step(
        self,
        state: ThermostatState,
        evaluate: Evaluate,
        step_size: Float[Array, ""],
        noise: Float[Array, " d"],
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


@dataclasses.dataclass(frozen=True)
class NoseHoover(DynamicsChoice):
    """Nosé–Hoover thermostat.

    **Arguments:**

    - `friction`: A, the friction without gradient noise.

    **Raises:** `InvalidInput` if `friction` is not positive.

    >>> import tallmc
    >>> tallmc.dynamics.NoseHoover(friction=2.0)
    NoseHoover(friction=2.0)
    """

    friction: float
    needs = AnchorLevel.NOTHING
    exact_only = False
    takes_geometry = True
    corrects_through = ("noise",)
    has_transition = False

    def __post_init__(self) -> None:
        check_number("friction", self.friction, 0, low_open=True)

    def suggest(self, curvature: Curvature) -> Suggestion:
        return kicked_suggestion(curvature)

    def prepare(self, context: DynamicsContext) -> NoseHooverDynamics:
        return NoseHooverDynamics(
            context.geometry, jnp.asarray(self.friction, context.posterior.dtype)
        )
