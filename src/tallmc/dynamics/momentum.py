"""What all dynamics with momentum share: positions θ, momenta ρ ~ N(0, I), both at the start and in the stationary law."""

from __future__ import annotations

from jaxtyping import Array, Float, PRNGKeyArray

from .._random import standard_normal
from .base import AbstractDynamicsState


class MomentumState(AbstractDynamicsState):
    position: Float[Array, " d"]
    momentum: Float[Array, " d"]


def with_momentum(key: PRNGKeyArray, position: Float[Array, " d"]) -> MomentumState:
    """A start with the momentum of the stationary law."""
    return MomentumState(position, standard_normal(key, position.shape, position.dtype))
