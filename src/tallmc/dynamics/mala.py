"""The Metropolis-adjusted Langevin algorithm: a Langevin step as proposal, then an accept step.

    θ' = θ − (ε/2) CCᵀ∇f(θ) + √ε Cη,
    accepted with probability min(1, exp(f(θ) − f(θ') + log q(θ|θ') − log q(θ'|θ)))

q is the density of the proposal. In many dimensions an acceptance rate near 0.57 is best.
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
    DynamicsStep,
    Evaluate,
    metropolis,
    potential_drop,
)


class MalaState(AbstractDynamicsState):
    """Position θ with ∇f(θ) and f(θ)."""

    position: Vector
    gradient: Vector
    potential: Sum | None


class MALA(AbstractMetropolis):
    """Metropolis-adjusted Langevin dynamics; requires `AllRows()`."""

    paper = "Roberts and Tweedie (1996)"
    cost = "The exact gradient and potential take one pass over the data per step."

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> MalaState:
        estimate = evaluate(position, None)
        return MalaState(position, estimate.gradient, estimate.potential)

    def step(
        self, state: MalaState, evaluate: Evaluate, step_size: Scalar, noise: AcceptNoise
    ) -> DynamicsStep:
        normal, log_uniform = noise
        move = jnp.sqrt(step_size) * normal - step_size / 2 * self.geometry.pull(state.gradient)
        proposal = state.position + self.geometry.push(move)
        estimate = evaluate(proposal, None)
        candidate = MalaState(proposal, estimate.gradient, estimate.potential)
        backward = step_size / 2 * self.geometry.pull(candidate.gradient) - move
        log_ratio = potential_drop(state.potential, candidate.potential)
        log_ratio += jnp.sum(normal**2) / 2 - jnp.sum(backward**2) / (2 * step_size)
        return metropolis(state, candidate, log_ratio, log_uniform, estimate)
