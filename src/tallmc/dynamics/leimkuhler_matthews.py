"""Langevin dynamics with averaged noise (Leimkuhler and Matthews, 2013): one gradient a step, one order better.

    θ' = θ − (ε/2) CCᵀ∇f̂(θ) + (√ε/2) C(η + η'),   η' fresh, η the one of the step before

The bias of its stationary law is of order ε², and on a Gaussian with exact gradients there is none at any stable ε. Gradient
noise of variance v still widens: on a Gaussian by a factor of about 1 + εv/4.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Needs
from .._random import standard_normal
from ..geometry import AbstractGeometry
from .base import AbstractDiffusion, AbstractDynamicsState, DynamicsChoice, Evaluate, Moved, Surroundings


class LeimkuhlerMatthewsState(AbstractDynamicsState):
    position: Float[Array, " d"]
    noise: Float[Array, " d"]
    """The noise of the step before."""


class LeimkuhlerMatthewsDynamics(AbstractDiffusion):
    geometry: AbstractGeometry
    evaluates_at_start = False

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> LeimkuhlerMatthewsState:
        return LeimkuhlerMatthewsState(position, standard_normal(key, position.shape, position.dtype))

    def step(
        self, state: LeimkuhlerMatthewsState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Float[Array, " d"]
    ) -> Moved:
        estimate = evaluate(state.position, None)
        drift = -step_size / 2 * self.geometry.pull(estimate.gradient)
        move = drift + jnp.sqrt(step_size) / 2 * (state.noise + noise)
        return Moved(LeimkuhlerMatthewsState(state.position + self.geometry.push(move), noise), estimate, {})


@dataclasses.dataclass(frozen=True)
class LeimkuhlerMatthews(DynamicsChoice):
    """Choose Langevin dynamics with averaged noise."""

    needs = Needs.NOTHING
    exact_only = False
    takes_geometry = True
    corrects_through = ()
    has_transition = False

    def prepare(self, around: Surroundings) -> LeimkuhlerMatthewsDynamics:
        return LeimkuhlerMatthewsDynamics(around.geometry)
