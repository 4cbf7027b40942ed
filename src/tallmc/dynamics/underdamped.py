"""Underdamped Langevin dynamics by Euler–Maruyama: SGHMC in the papers, SGULD in li-2021 (eq. 3).

    θ' = θ + (ε/2) Cρ
    ρ' = ρ − (ε/2) (Cᵀ∇f̂(θ) + γρ) + √(εγ) ξ,   ξ ~ N(0, I)

This is nemeth-2021, Table 1 (SGHMC), by eq. 11. γ is the friction, CCᵀ the inverse mass matrix;
li-2021 writes h for ε/2. The bias at fixed ε is of order ε. Both lines use the old state, so the
chain is stable only if ε/2 < γ/λ in every direction of curvature λ. With γ ≫ √λ the dynamics is
Langevin dynamics with step size ε/γ. Critical damping, γ = 2√λ, mixes fastest in a direction of
curvature λ.

Gradient noise can be corrected by injecting less noise, ξ ~ N(0, I − (ε/4γ)V), or by more friction,
γ + (ε/4)V (li-2021, app. F).
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..core.errors import check_number
from ..core.linear_maps import AbstractLinearMap
from ..correction import drag, reduced_noise
from ..subsample.selection import Transition
from .base import (
    AbstractDiffusion,
    Curvature,
    DynamicsChoice,
    DynamicsContext,
    DynamicsStep,
    Evaluate,
    Suggestion,
)
from .momentum import MomentumState, kicked_suggestion, with_momentum


class UnderdampedDynamics(AbstractDiffusion):
    """Underdamped Langevin dynamics in Euler form, prepared for one posterior.

    **Arguments:**

    - `geometry`: the linear map C of the coordinates.
    - `friction`: the friction γ.
    - `adds_friction`: True corrects gradient noise by more friction, False by less injected noise.

    >>> import jax.numpy as jnp, tallmc
    >>> from tallmc.core.linear_maps import IdentityMap
    >>> tallmc.dynamics.UnderdampedDynamics(IdentityMap(), jnp.ones(()), False).adds_friction
    False
    """

    geometry: AbstractLinearMap
    friction: Float[Array, ""]
    adds_friction: bool = eqx.field(static=True)
    evaluates_at_start = False

    def init(
        self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate
    ) -> MomentumState:
        return with_momentum(key, position)

    def step(
        self,
        state: MomentumState,
        evaluate: Evaluate,
        step_size: Float[Array, ""],
        noise: Float[Array, " d"],
    ) -> DynamicsStep:
        h, momentum = step_size / 2, state.momentum
        sd = jnp.sqrt(2 * self.friction * h)
        at_rest = h * self.friction * momentum / sd

        def to_zero() -> Float[Array, " d"]:  # of the momentum, which has no C: ρ ~ N(0, I)
            return at_rest - state.momentum / sd

        estimate = evaluate(state.position, Transition(at_rest, to_zero, h / sd, self.geometry))
        added = drag(momentum, estimate.noise if self.adds_friction else None, h)
        injected = reduced_noise(
            noise, None if self.adds_friction else estimate.noise, h / (2 * self.friction)
        )
        position = state.position + self.geometry.push(h * momentum)
        force = self.geometry.pull(estimate.gradient) + self.friction * momentum + added.force
        momentum = momentum - h * force + sd * injected.noise
        return DynamicsStep(
            MomentumState(position, momentum),
            estimate,
            injected.stats,
            jnp.maximum(injected.outcome, added.outcome),
        )


@dataclasses.dataclass(frozen=True)
class Underdamped(DynamicsChoice):
    """Underdamped Langevin dynamics in the Euler form of the papers.

    **Arguments:**

    - `friction`: the friction γ.

    **Raises:** `InvalidInput` if `friction` is not positive.

    >>> import tallmc
    >>> tallmc.dynamics.Underdamped(friction=2.0).corrects_through
    ('noise', 'friction')
    """

    friction: float
    needs = AnchorLevel.NOTHING
    exact_only = False
    takes_geometry = True
    corrects_through = ("noise", "friction")
    has_transition = True

    def __post_init__(self) -> None:
        check_number("friction", self.friction, 0, low_open=True)

    def suggest(self, curvature: Curvature) -> Suggestion:
        return kicked_suggestion(curvature)

    def prepare(self, context: DynamicsContext) -> UnderdampedDynamics:
        adds_friction = context.correction is not None and context.correction.through == "friction"
        return UnderdampedDynamics(
            context.geometry, jnp.asarray(self.friction, context.posterior.dtype), adds_friction
        )
