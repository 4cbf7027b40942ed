"""How a chain ended. Failure is a value, not an exception: the other chains continue."""

from __future__ import annotations

import enum

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

DIVERGENCE_LIMIT = 1e10


class Outcome(enum.IntEnum):
    """How a chain ended.

    >>> Outcome.OK.message
    'completed'
    """

    OK = 0
    NON_FINITE = 1
    DIVERGED = 2
    TOO_NOISY = 3

    @property
    def message(self) -> str:
        """What happened to the chain, and the cure."""
        return _MESSAGES[self]


_CURE = (
    "Make the step size smaller or the subsample larger. "
    "With a control variate, start near the anchor."
)
_MESSAGES = {
    Outcome.OK: "completed",
    Outcome.NON_FINITE: f"reached a NaN or infinite position. {_CURE} "
    "Standardise columns of very different scale.",
    Outcome.DIVERGED: f"ran away: a coordinate exceeded {DIVERGENCE_LIMIT:g}. {_CURE}",
    Outcome.TOO_NOISY: "had more gradient noise than its step can correct. "
    "Make the step size smaller or the subsample larger.",
}


def outcome_of(position: Float[Array, " d"]) -> Int[Array, ""]:
    """The outcome of a chain at this position."""
    largest = jnp.max(jnp.abs(position))
    failed = jnp.where(jnp.isfinite(largest), Outcome.DIVERGED, Outcome.NON_FINITE)
    return jnp.where(largest < DIVERGENCE_LIMIT, Outcome.OK, failed).astype(jnp.int32)
