"""Random-walk Metropolis: a Gaussian proposal around the position, then an accept step.

    θ' = θ + √ε Cη,   accepted with probability min(1, exp(f(θ) − f(θ')))

Exact: every ε leaves exp(−f) invariant. Only the potential is used, which takes one pass over the
data per step. In many dimensions an acceptance rate near 0.234 is best; on a round posterior this
means ε ≈ 5.7/d (Roberts, Gelman and Gilks, 1997).
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..core.linear_maps import AbstractLinearMap
from ..rows.sums import Sum
from .accept import AbstractAccepting, Noise, metropolis, potential_drop
from .base import (
    AbstractDynamicsState,
    Curvature,
    DynamicsChoice,
    DynamicsContext,
    DynamicsStep,
    Evaluate,
    Suggestion,
)


class RandomWalkState(AbstractDynamicsState):
    """Position θ and potential f(θ)."""

    position: Float[Array, " d"]
    potential: Sum | None


class RandomWalkDynamics(AbstractAccepting):
    """Random-walk Metropolis prepared for one posterior.

    **Arguments:**

    - `geometry`: the linear map C of the coordinates.

    >>> import tallmc
    >>> from tallmc.core.linear_maps import IdentityMap
    >>> tallmc.dynamics.RandomWalkDynamics(IdentityMap()).evaluates_at_start
    True
    """

    geometry: AbstractLinearMap
    evaluates_at_start = True

    def init(
        self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate
    ) -> RandomWalkState:
        return RandomWalkState(position, evaluate(position, None).potential)

    def step(
        self, state: RandomWalkState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Noise
    ) -> DynamicsStep:
        normal, log_uniform = noise
        proposal = state.position + self.geometry.push(jnp.sqrt(step_size) * normal)
        estimate = evaluate(proposal, None)
        assert state.potential is not None and estimate.potential is not None, (
            "an accept step requires the potential of all rows"
        )
        log_ratio = potential_drop(state.potential, estimate.potential)
        return metropolis(
            state, RandomWalkState(proposal, estimate.potential), log_ratio, log_uniform, estimate
        )


@dataclasses.dataclass(frozen=True)
class RandomWalk(DynamicsChoice):
    """Random-walk Metropolis; requires `AllRows()`.

    >>> import tallmc
    >>> tallmc.dynamics.RandomWalk().exact_only
    True
    """

    needs = AnchorLevel.NOTHING
    exact_only = True
    takes_geometry = True
    corrects_through = ()
    has_transition = False

    def suggest(self, curvature: Curvature) -> Suggestion:
        step = 2 / (curvature.dim * curvature.largest)
        rule = "2 / (parameters · largest curvature)"
        return Suggestion(step, rule, 1 / (step * curvature.smallest), langevin_step=step)

    def prepare(self, context: DynamicsContext) -> RandomWalkDynamics:
        return RandomWalkDynamics(context.geometry)
