"""Noise and Metropolis–Hastings accept step of the exact dynamics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ..core.random import standard_normal
from ..rows.sums import Sum
from ..subsample.selection import Estimate
from .base import AbstractDynamics, DynamicsStep

Noise = tuple[Float[Array, "*steps d"], Float[Array, "*steps"]]
"""Normal vector of the proposal, and the logarithm of a uniform number for the accept step."""


class AbstractExact(AbstractDynamics):
    """Dynamics with an accept step. They have no bias that pairs of chains could measure."""

    def finer(self) -> AbstractDynamics:
        return self

    def merged_noise(self, first: PyTree[Array], second: PyTree[Array]) -> PyTree[Array]:
        raise TypeError("dynamics with an accept step have no pairs")


class AbstractAccepting(AbstractExact):
    """Dynamics that propose a Gaussian move and then accept or reject it."""

    def noise(self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]) -> Noise:
        proposal_key, accept_key = jax.random.split(key)
        normal = standard_normal(proposal_key, (steps, *like.shape), like.dtype)
        return normal, -jax.random.exponential(accept_key, (steps,), like.dtype)


def potential_drop(before: Sum, after: Sum) -> Float[Array, ""]:
    """f(θ) − f(θ') of two large potentials; their low-order parts are not lost to cancellation."""
    return (before.high - after.high) + (before.low - after.low)


def metropolis(
    state: Any,
    candidate: Any,
    log_ratio: Float[Array, ""],
    log_uniform: Float[Array, ""],
    used: Estimate,
) -> DynamicsStep:
    """Accept the candidate with probability min(1, exp(log_ratio)), otherwise keep the state.

    A NaN ratio rejects the candidate.
    """
    accept = log_uniform < log_ratio
    next_state = jax.tree.map(lambda new, old: jnp.where(accept, new, old), candidate, state)
    rate = jnp.exp(jnp.minimum(jnp.nan_to_num(log_ratio, nan=-jnp.inf), 0))
    return DynamicsStep(next_state, used, {"acceptance_rate": rate})
