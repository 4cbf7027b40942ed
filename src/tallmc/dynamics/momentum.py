"""State shared by dynamics with momentum: ρ ~ N(0, I) at the start and in the stationary law."""

from __future__ import annotations

from jaxtyping import Array, Float, PRNGKeyArray

from ..core.random import standard_normal
from .base import AbstractDynamicsState, Curvature, Suggestion, smaller_step


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
    friction = 2 * frequency
    step, rule = smaller_step(
        0.2 / frequency, "0.2 / root of the largest curvature", friction * curvature.noise_limit
    )
    between = friction / (step * curvature.smallest)
    return Suggestion(step, rule, between, step / friction, {"friction": friction})
