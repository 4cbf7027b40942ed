"""Random-walk Metropolis: a Gaussian proposal around the position, then an accept step.

    θ' = θ + √ε Cη,   accepted with probability min(1, exp(f(θ) − f(θ')))

In many dimensions an acceptance rate near 0.234 is best; on a round posterior this means ε ≈ 5.7/d
(Roberts, Gelman and Gilks, 1997).
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from .._core.arrays import Scalar, Vector
from .._rows.passes import Sum
from .dynamics import (
    AbstractDynamicsState,
    AbstractMetropolis,
    AcceptNoise,
    Curvature,
    DynamicsStep,
    Evaluate,
    Suggestion,
    metropolis,
    potential_drop,
)


class RandomWalkState(AbstractDynamicsState):
    """Position θ and potential f(θ)."""

    position: Vector
    potential: Sum | None


class RandomWalk(AbstractMetropolis):
    """Random-walk Metropolis; requires `AllRows()`."""

    paper = "Metropolis, Rosenbluth, Rosenbluth, Teller and Teller (1953)"
    cost = "Only the potential is used, which takes one pass over the data per step."

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> RandomWalkState:
        return RandomWalkState(position, evaluate(position, None).potential)

    def step(
        self, state: RandomWalkState, evaluate: Evaluate, step_size: Scalar, noise: AcceptNoise
    ) -> DynamicsStep:
        normal, log_uniform = noise
        proposal = state.position + self.geometry.push(jnp.sqrt(step_size) * normal)
        estimate = evaluate(proposal, None)
        candidate = RandomWalkState(proposal, estimate.potential)
        log_ratio = potential_drop(state.potential, candidate.potential)
        return metropolis(state, candidate, log_ratio, log_uniform, estimate)

    def suggest(self, curvature: Curvature) -> Suggestion:
        step = 2 / (curvature.dim * curvature.largest)
        rule = "2 / (parameters · largest curvature)"
        return Suggestion(step, rule, 1 / (step * curvature.smallest), langevin_step=step)
