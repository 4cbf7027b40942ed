"""The Metropolis-adjusted Langevin algorithm: a Langevin step as proposal, then an accept step.

    θ' = θ − (ε/2) CCᵀ∇f(θ) + √ε Cη,
    accepted with probability min(1, exp(f(θ) − f(θ') + log q(θ|θ') − log q(θ'|θ)))

q is the density of the proposal. Exact: every ε leaves exp(−f) invariant. The exact gradient and
potential take one pass over the data per step. In many dimensions an acceptance rate near 0.57 is
best. Roberts and Tweedie (1996).
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..core.linear_maps import AbstractLinearMap
from ..rows.sums import Sum
from ..subsample.selection import Estimate
from .accept import AbstractAccepting, Noise, metropolis, potential_drop
from .base import (
    AbstractDynamicsState,
    Curvature,
    DynamicsChoice,
    DynamicsContext,
    DynamicsStep,
    Evaluate,
    Suggestion,
    overdamped_suggestion,
)


class MalaState(AbstractDynamicsState):
    """Position θ with ∇f(θ) and f(θ)."""

    position: Float[Array, " d"]
    gradient: Float[Array, " d"]
    potential: Sum


class MalaDynamics(AbstractAccepting):
    """Metropolis-adjusted Langevin dynamics prepared for one posterior.

    **Arguments:**

    - `geometry`: the linear map C of the coordinates.

    >>> import tallmc
    >>> from tallmc.core.linear_maps import IdentityMap
    >>> tallmc.dynamics.MalaDynamics(IdentityMap()).evaluates_at_start
    True
    """

    geometry: AbstractLinearMap
    evaluates_at_start = True

    def init(
        self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate
    ) -> MalaState:
        return _state_at(position, evaluate(position, None))

    def step(
        self, state: MalaState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Noise
    ) -> DynamicsStep:
        normal, log_uniform = noise
        move = jnp.sqrt(step_size) * normal - step_size / 2 * self.geometry.pull(state.gradient)
        estimate = evaluate(state.position + self.geometry.push(move), None)
        candidate = _state_at(state.position + self.geometry.push(move), estimate)
        backward = step_size / 2 * self.geometry.pull(candidate.gradient) - move
        log_ratio = potential_drop(state.potential, candidate.potential)
        log_ratio += jnp.sum(normal**2) / 2 - jnp.sum(backward**2) / (2 * step_size)
        return metropolis(state, candidate, log_ratio, log_uniform, estimate)


def _state_at(position: Float[Array, " d"], estimate: Estimate) -> MalaState:
    assert estimate.potential is not None, "an accept step requires the potential of all rows"
    return MalaState(position, estimate.gradient, estimate.potential)


@dataclasses.dataclass(frozen=True)
class MALA(DynamicsChoice):
    """Metropolis-adjusted Langevin dynamics; requires `AllRows()`.

    >>> import tallmc
    >>> tallmc.dynamics.MALA().exact_only
    True
    """

    needs = AnchorLevel.NOTHING
    exact_only = True
    takes_geometry = True
    corrects_through = ()
    has_transition = False

    def suggest(self, curvature: Curvature) -> Suggestion:
        return overdamped_suggestion(curvature)

    def prepare(self, context: DynamicsContext) -> MalaDynamics:
        return MalaDynamics(context.geometry)
