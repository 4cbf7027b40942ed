"""Langevin dynamics with averaged noise (Leimkuhler and Matthews, 2013), one gradient per step.

    θ' = θ − (ε/2) CCᵀ∇f̂(θ) + (√ε/2) C(η + η'),   η' new, η the noise of the previous step

The bias of the stationary law is of order ε², one order better than Euler–Maruyama. On a Gaussian
with exact gradients there is no bias at any stable ε. Gradient noise of variance v still widens the
law: on a Gaussian by a factor of about 1 + εv/4. The noise correction is η ~ N(0, I − (ε/4)V).
Each η moves the chain by √ε η in total, so this removes what the gradient noise of one step adds.
On a Gaussian a share ελ/4 of the excess remains.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
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
    overdamped_suggestion,
)


class LeimkuhlerMatthewsState(AbstractDynamicsState):
    """Position θ and the noise of the previous step."""

    position: Float[Array, " d"]
    noise: Float[Array, " d"]
    """η."""


class LeimkuhlerMatthewsDynamics(AbstractDiffusion):
    """Langevin dynamics with averaged noise, prepared for one posterior.

    **Arguments:**

    - `geometry`: the linear map C of the coordinates.

    >>> import tallmc
    >>> from tallmc.core.linear_maps import IdentityMap
    >>> tallmc.dynamics.LeimkuhlerMatthewsDynamics(IdentityMap()).evaluates_at_start
    False
    """

    geometry: AbstractLinearMap
    evaluates_at_start = False

    def init(
        self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate
    ) -> LeimkuhlerMatthewsState:
        return LeimkuhlerMatthewsState(
            position, standard_normal(key, position.shape, position.dtype)
        )

    def step(
        self,
        state: LeimkuhlerMatthewsState,
        evaluate: Evaluate,
        step_size: Float[Array, ""],
        noise: Float[Array, " d"],
    ) -> DynamicsStep:
        estimate = evaluate(state.position, None)
        injected = reduced_noise(noise, estimate.noise, step_size / 4)
        drift = -step_size / 2 * self.geometry.pull(estimate.gradient)
        move = drift + jnp.sqrt(step_size) / 2 * (state.noise + injected.noise)
        moved = LeimkuhlerMatthewsState(state.position + self.geometry.push(move), injected.noise)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)


@dataclasses.dataclass(frozen=True)
class LeimkuhlerMatthews(DynamicsChoice):
    """Langevin dynamics with averaged noise.

    >>> import tallmc
    >>> tallmc.sgld_lm(step_size=1e-4, size=10).dynamics
    LeimkuhlerMatthews()
    """

    needs = AnchorLevel.NOTHING
    exact_only = False
    takes_geometry = True
    corrects_through = ("noise",)
    has_transition = False

    def suggest(self, curvature: Curvature) -> Suggestion:
        return overdamped_suggestion(curvature)

    def prepare(self, context: DynamicsContext) -> LeimkuhlerMatthewsDynamics:
        return LeimkuhlerMatthewsDynamics(context.geometry)
