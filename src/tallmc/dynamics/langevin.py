"""Overdamped Langevin dynamics, Euler–Maruyama: SGLD with a stochastic gradient, ULA with the exact one.

    θ' = θ − (ε/2) CCᵀ∇f̂(θ) + √ε Cη,   η ~ N(0, I)                              putcha-2023, eqs. 2 and 4 (there C = I)

Biased at any fixed ε, of order ε. On a Gaussian with variance σ² the variance comes out as σ²(1 + εv/4)/(1 − ε/4σ²), where
v = Var ∇f̂: the denominator is discretisation, the numerator gradient noise. Stable for ε < 4σ² in the narrowest direction.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Needs
from ..correction import shrunk
from ..geometry import AbstractGeometry
from ..subsample.selection import Transition
from .base import AbstractDiffusion, AbstractDynamicsState, DynamicsChoice, Evaluate, Moved, Surroundings


class LangevinState(AbstractDynamicsState):
    position: Float[Array, " d"]


class LangevinDynamics(AbstractDiffusion):
    geometry: AbstractGeometry
    evaluates_at_start = False

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> LangevinState:
        return LangevinState(position)

    def step(self, state: LangevinState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Float[Array, " d"]) -> Moved:
        root = jnp.sqrt(step_size)
        estimate = evaluate(state.position, Transition(jnp.zeros_like(noise), -state.position / root, root / 2, self.geometry))
        injected = shrunk(noise, estimate.noise, step_size / 4)
        move = root * injected.noise - step_size / 2 * self.geometry.pull(estimate.gradient)
        moved = LangevinState(state.position + self.geometry.push(move))
        return Moved(moved, estimate, injected.stats, injected.outcome)


@dataclasses.dataclass(frozen=True)
class Langevin(DynamicsChoice):
    """Choose overdamped Langevin dynamics."""

    needs = Needs.NOTHING
    exact_only = False
    takes_geometry = True
    corrects_through = ("noise",)
    has_transition = True

    def prepare(self, around: Surroundings) -> LangevinDynamics:
        return LangevinDynamics(around.geometry)
