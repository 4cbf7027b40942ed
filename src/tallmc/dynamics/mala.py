"""The Metropolis-adjusted Langevin algorithm: a Langevin step as proposal, then accept or stay.

    θ' = θ − (ε/2) ∇f(θ) + √ε η,   accepted with probability min(1, exp(f(θ) − f(θ') + log q(θ|θ') − log q(θ'|θ)))

q the density of the proposal. Exact: it leaves exp(−f) invariant at any ε. It needs the exact gradient and potential, so every
step is a pass over the data. Roberts and Tweedie (1996). An acceptance near 0.57 is best in many dimensions.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Anchor, Needs
from .._posterior import AbstractPosterior
from .._random import standard_normal
from .._rows import Sum
from ..subsample.selection import Estimate
from .base import AbstractDynamics, AbstractDynamicsState, DynamicsChoice, Evaluate

Noise = tuple[Float[Array, " d"], Float[Array, ""]]


class MalaState(AbstractDynamicsState):
    position: Float[Array, " d"]
    gradient: Float[Array, " d"]
    potential: Sum


class MalaDynamics(AbstractDynamics):
    evaluates_at_start = True

    def init(self, position: Float[Array, " d"], evaluate: Evaluate) -> MalaState:
        return _state(position, evaluate(position))

    def noise(self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]) -> Noise:
        proposal_key, accept_key = jax.random.split(key)
        normal = standard_normal(proposal_key, (steps, *like.shape), like.dtype)
        return normal, -jax.random.exponential(accept_key, (steps,), like.dtype)

    def step(
        self, state: MalaState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Noise
    ) -> tuple[MalaState, Estimate, dict[str, Array]]:
        normal, log_uniform = noise
        proposal = state.position - step_size / 2 * state.gradient + jnp.sqrt(step_size) * normal
        estimate = evaluate(proposal)
        candidate = _state(proposal, estimate)
        backward = state.position - proposal + step_size / 2 * candidate.gradient
        log_ratio = _difference(state.potential, candidate.potential)
        log_ratio += jnp.sum(normal**2) / 2 - jnp.sum(backward**2) / (2 * step_size)
        accept = log_uniform < log_ratio  # False when the ratio is NaN: such a proposal is refused
        kept = jax.tree.map(lambda new, old: jnp.where(accept, new, old), candidate, state)
        return kept, estimate, {"acceptance_rate": jnp.exp(jnp.minimum(jnp.nan_to_num(log_ratio, nan=-jnp.inf), 0))}


def _state(position: Float[Array, " d"], estimate: Estimate) -> MalaState:
    assert estimate.potential is not None, "MALA is composed with all rows only"
    return MalaState(position, estimate.gradient, estimate.potential)


def _difference(a: Sum, b: Sum) -> Float[Array, ""]:
    """a − b of two large potentials, without losing the small parts."""
    return (a.high - b.high) + (a.low - b.low)


@dataclasses.dataclass(frozen=True)
class MALA(DynamicsChoice):
    """Choose Metropolis-adjusted Langevin dynamics; it goes with the exact gradient only."""

    needs = Needs.NOTHING
    exact_only = True

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> MalaDynamics:
        return MalaDynamics()
