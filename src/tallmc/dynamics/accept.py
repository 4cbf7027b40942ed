"""The accept step of Metropolis and Hastings, shared by the exact dynamics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._rows import Sum
from ..subsample.selection import Estimate
from .base import Moved


def potential_drop(before: Sum, after: Sum) -> Float[Array, ""]:
    """f(θ) − f(θ') of two large potentials, without losing the small parts."""
    return (before.high - after.high) + (before.low - after.low)


def metropolis(state: Any, candidate: Any, log_ratio: Float[Array, ""], log_uniform: Float[Array, ""], used: Estimate) -> Moved:
    """The candidate with probability min(1, exp(log_ratio)), else the state as it was; refused where the ratio is NaN."""
    accept = log_uniform < log_ratio
    kept = jax.tree.map(lambda new, old: jnp.where(accept, new, old), candidate, state)
    rate = jnp.exp(jnp.minimum(jnp.nan_to_num(log_ratio, nan=-jnp.inf), 0))
    return Moved(kept, used, {"acceptance_rate": rate})
