"""State shared by dynamics with momentum: ρ ~ N(0, I) at the start and in the stationary law."""

from __future__ import annotations

from jaxtyping import Array, Float, PRNGKeyArray

from ..core.random import standard_normal
from .base import AbstractDynamicsState, Curvature, Suggestion


class MomentumState(AbstractDynamicsState):
    """Position θ and momentum ρ."""

    position: Float[Array, " d"]
    momentum: Float[Array, " d"]


def with_momentum(key: PRNGKeyArray, position: Float[Array, " d"]) -> MomentumState:
    """Return the state of a chain before its first step, with momentum ρ ~ N(0, I)."""
    return MomentumState(position, standard_normal(key, position.shape, position.dtype))


def kicked_suggestion(curvature: Curvature) -> Suggestion:
    """Suggest settings for Euler steps of dynamics with friction."""
    frequency = curvature.largest**0.5
    rule = "0.2 / root of the largest curvature"
    return Suggestion(0.2 / frequency, rule, 10 * curvature.condition, {"friction": 2 * frequency})
