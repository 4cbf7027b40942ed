"""Overdamped Langevin dynamics by Euler–Maruyama: SGLD, or ULA with the exact gradient.

    θ' = θ − (ε/2) CCᵀ∇f̂(θ) + √ε Cη,   η ~ N(0, I)

This is putcha-2023, eqs. 2 and 4 (there C = I). The bias at fixed ε is of order ε. On a Gaussian
with variance σ² the stationary variance is σ²(1 + εv/4)/(1 − ε/4σ²), where v = Var ∇f̂: the
denominator is discretisation error, the numerator gradient noise. The chain is stable for ε < 4σ²
in the narrowest direction.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..core.linear_maps import AbstractLinearMap
from ..correction import reduced_noise
from ..subsample.selection import Transition
from .base import (
    AbstractDiffusion,
    AbstractDynamicsState,
    Curvature,
    DynamicsChoice,
    DynamicsContext,
    DynamicsStep,
    Evaluate,
    Suggestion,
    overdamped_suggestion,
)


class LangevinState(AbstractDynamicsState):
    """Position θ."""

    position: Float[Array, " d"]


class LangevinDynamics(AbstractDiffusion):
    """Overdamped Langevin dynamics prepared for one posterior.

    **Arguments:**

    - `geometry`: the linear map C of the coordinates.

    >>> import tallmc
    >>> from tallmc.core.linear_maps import IdentityMap
    >>> tallmc.dynamics.LangevinDynamics(IdentityMap()).evaluates_at_start
    False
    """

    geometry: AbstractLinearMap
    evaluates_at_start = False

    def init(
        self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate
    ) -> LangevinState:
        return LangevinState(position)

    def step(
        self,
        state: LangevinState,
        evaluate: Evaluate,
        step_size: Float[Array, ""],
        noise: Float[Array, " d"],
    ) -> DynamicsStep:
        root = jnp.sqrt(step_size)

        def to_zero() -> Float[Array, " d"]:
            return -self.geometry.solve(state.position) / root

        transition = Transition(jnp.zeros_like(noise), to_zero, root / 2, self.geometry)
        estimate = evaluate(state.position, transition)
        injected = reduced_noise(noise, estimate.noise, step_size / 4)
        move = root * injected.noise - step_size / 2 * self.geometry.pull(estimate.gradient)
        moved = LangevinState(state.position + self.geometry.push(move))
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)


@dataclasses.dataclass(frozen=True)
class Langevin(DynamicsChoice):
    """Overdamped Langevin dynamics.

    >>> import tallmc
    >>> tallmc.sgld(step_size=1e-4, size=10).dynamics
    Langevin()
    """

    needs = AnchorLevel.NOTHING
    exact_only = False
    takes_geometry = True
    corrects_through = ("noise",)
    has_transition = True

    def suggest(self, curvature: Curvature) -> Suggestion:
        return overdamped_suggestion(curvature)

    def prepare(self, context: DynamicsContext) -> LangevinDynamics:
        return LangevinDynamics(context.geometry)
