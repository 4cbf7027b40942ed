"""Overdamped Langevin dynamics, Euler–Maruyama: SGLD with a stochastic gradient, ULA with the exact one.

    θ' = θ − (ε/2) ∇f̂(θ) + √ε η,   η ~ N(0, I)                                               putcha-2023, eqs. 2 and 4

Biased at any fixed ε. On a Gaussian with variance σ² the variance comes out as σ²(1 + εv/4)/(1 − ε/4σ²), where v = Var ∇f̂: the
denominator is discretisation, the numerator gradient noise. Stable for ε < 4σ² in the narrowest direction.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Anchor, Needs
from .._posterior import AbstractPosterior
from .._random import standard_normal
from ..subsample.selection import Estimate
from .base import AbstractDynamics, AbstractDynamicsState, DynamicsChoice, Evaluate


class LangevinState(AbstractDynamicsState):
    position: Float[Array, " d"]


class LangevinDynamics(AbstractDynamics):
    evaluates_at_start = False

    def init(self, position: Float[Array, " d"], evaluate: Evaluate) -> LangevinState:
        return LangevinState(position)

    def noise(self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]) -> Float[Array, "steps d"]:
        return standard_normal(key, (steps, *like.shape), like.dtype)

    def step(
        self, state: LangevinState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Float[Array, " d"]
    ) -> tuple[LangevinState, Estimate, dict[str, Array]]:
        estimate = evaluate(state.position)
        position = state.position - step_size / 2 * estimate.gradient + jnp.sqrt(step_size) * noise
        return LangevinState(position), estimate, {}


@dataclasses.dataclass(frozen=True)
class Langevin(DynamicsChoice):
    """Choose overdamped Langevin dynamics."""

    needs = Needs.NOTHING
    exact_only = False

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> LangevinDynamics:
        return LangevinDynamics()
