"""What the exact dynamics share: the noise of a proposal and the accept step of Metropolis and Hastings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._random import standard_normal
from .._rows import Sum
from ..subsample.selection import Estimate
from .base import AbstractDynamics, Moved

Noise = tuple[Float[Array, " d"], Float[Array, ""]]
"""Of the proposal, and the logarithm of a uniform number for the accept step."""


class AbstractAccepting(AbstractDynamics):
    """Dynamics that propose a Gaussian move and then accept or stay."""

    def noise(self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]) -> Noise:
        proposal_key, accept_key = jax.random.split(key)
        normal = standard_normal(proposal_key, (steps, *like.shape), like.dtype)
        return normal, -jax.random.exponential(accept_key, (steps,), like.dtype)


def potential_drop(before: Sum, after: Sum) -> Float[Array, ""]:
    """f(θ) − f(θ') of two large potentials, without losing the small parts."""
    return (before.high - after.high) + (before.low - after.low)


def metropolis(state: Any, candidate: Any, log_ratio: Float[Array, ""], log_uniform: Float[Array, ""], used: Estimate) -> Moved:
    """The candidate with probability min(1, exp(log_ratio)), else the state as it was; refused where the ratio is NaN."""
    accept = log_uniform < log_ratio
    kept = jax.tree.map(lambda new, old: jnp.where(accept, new, old), candidate, state)
    rate = jnp.exp(jnp.minimum(jnp.nan_to_num(log_ratio, nan=-jnp.inf), 0))
    return Moved(kept, used, {"acceptance_rate": rate})
