"""The Metropolis-adjusted Langevin algorithm: a Langevin step as proposal, then accept or stay.

    θ' = θ − (ε/2) CCᵀ∇f(θ) + √ε Cη,   accepted with probability min(1, exp(f(θ) − f(θ') + log q(θ|θ') − log q(θ'|θ)))

q the density of the proposal. Exact: it leaves exp(−f) invariant at any ε. It needs the exact gradient and potential, so every
step is a pass over the data. Roberts and Tweedie (1996). An acceptance near 0.57 is best in many dimensions.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Needs
from .._rows import Sum
from ..geometry import AbstractGeometry
from ..subsample.selection import Estimate
from .accept import AbstractAccepting, Noise, metropolis, potential_drop
from .base import AbstractDynamicsState, DynamicsChoice, Evaluate, Moved, Surroundings


class MalaState(AbstractDynamicsState):
    position: Float[Array, " d"]
    gradient: Float[Array, " d"]
    potential: Sum


class MalaDynamics(AbstractAccepting):
    geometry: AbstractGeometry
    evaluates_at_start = True

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> MalaState:
        return _state(position, evaluate(position, None))

    def step(self, state: MalaState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Noise) -> Moved:
        normal, log_uniform = noise
        move = jnp.sqrt(step_size) * normal - step_size / 2 * self.geometry.pull(state.gradient)
        estimate = evaluate(state.position + self.geometry.push(move), None)
        candidate = _state(state.position + self.geometry.push(move), estimate)
        backward = step_size / 2 * self.geometry.pull(candidate.gradient) - move
        log_ratio = potential_drop(state.potential, candidate.potential)
        log_ratio += jnp.sum(normal**2) / 2 - jnp.sum(backward**2) / (2 * step_size)
        return metropolis(state, candidate, log_ratio, log_uniform, estimate)


def _state(position: Float[Array, " d"], estimate: Estimate) -> MalaState:
    assert estimate.potential is not None, "an accept step is composed with all rows only"
    return MalaState(position, estimate.gradient, estimate.potential)


@dataclasses.dataclass(frozen=True)
class MALA(DynamicsChoice):
    """Choose Metropolis-adjusted Langevin dynamics; it goes with the exact gradient only."""

    needs = Needs.NOTHING
    exact_only = True
    takes_geometry = True
    corrects_through = ()
    has_transition = False

    def prepare(self, around: Surroundings) -> MalaDynamics:
        return MalaDynamics(around.geometry)
