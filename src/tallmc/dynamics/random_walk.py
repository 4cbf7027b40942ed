"""Random-walk Metropolis: a Gaussian move in any direction, then accept or stay.

    θ' = θ + √ε Cη,   accepted with probability min(1, exp(f(θ) − f(θ')))

Exact: it leaves exp(−f) invariant at any ε. It asks for the potential only, which is a pass over the data in every step. An
acceptance near 0.234 is best in many dimensions, which on a round posterior means ε ≈ 5.7/d (Roberts, Gelman and Gilks, 1997).
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Needs
from .._rows import Sum
from ..geometry import AbstractGeometry
from .accept import AbstractAccepting, Noise, metropolis, potential_drop
from .base import AbstractDynamicsState, DynamicsChoice, Evaluate, Moved, Surroundings


class RandomWalkState(AbstractDynamicsState):
    position: Float[Array, " d"]
    potential: Sum | None


class RandomWalkDynamics(AbstractAccepting):
    geometry: AbstractGeometry
    evaluates_at_start = True

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> RandomWalkState:
        return RandomWalkState(position, evaluate(position, None).potential)

    def step(self, state: RandomWalkState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Noise) -> Moved:
        normal, log_uniform = noise
        proposal = state.position + self.geometry.push(jnp.sqrt(step_size) * normal)
        estimate = evaluate(proposal, None)
        assert state.potential is not None and estimate.potential is not None, "an accept step is composed with all rows only"
        log_ratio = potential_drop(state.potential, estimate.potential)
        return metropolis(state, RandomWalkState(proposal, estimate.potential), log_ratio, log_uniform, estimate)


@dataclasses.dataclass(frozen=True)
class RandomWalk(DynamicsChoice):
    """Choose random-walk Metropolis; it goes with all rows only."""

    needs = Needs.NOTHING
    exact_only = True
    takes_geometry = True
    corrects_through = ()
    has_transition = False

    def prepare(self, around: Surroundings) -> RandomWalkDynamics:
        return RandomWalkDynamics(around.geometry)
