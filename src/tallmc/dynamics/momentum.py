"""What dynamics with momentum share: ρ ~ N(0, I) at the start and in the stationary law."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from .._core.arrays import AbstractLinearMap, Scalar, Vector
from .._core.errors import check_number
from .._core.random import standard_normal
from ..subsample.selection import Transition
from .dynamics import AbstractDynamics, AbstractDynamicsState, Curvature, Evaluate, Suggestion


class MomentumState(AbstractDynamicsState):
    """Position θ and momentum ρ."""

    position: Vector
    momentum: Vector


def with_momentum(key: PRNGKeyArray, position: Vector) -> MomentumState:
    """The state of a chain before its first step, with momentum ρ ~ N(0, I)."""
    return MomentumState(position, standard_normal(key, position.shape, position.dtype))


class AbstractWithMomentum(AbstractDynamics):
    """Second-order dynamics. By default by Euler steps, which are stable for small steps only."""

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> Any:
        return with_momentum(key, position)

    def suggest(self, curvature: Curvature) -> Suggestion:
        frequency = curvature.largest**0.5
        friction = 2 * frequency
        rule = "0.2 / root of the largest curvature"
        step, rule = curvature.within_noise(0.2 / frequency, rule, friction)
        between = friction / (step * curvature.smallest)
        return Suggestion(step, rule, between, step / friction, {"friction": friction})


class AbstractWithFriction(AbstractWithMomentum):
    """Second-order dynamics with one friction γ > 0."""

    friction: float

    def __post_init__(self) -> None:
        check_number("friction", self.friction, 0, low_open=True)


class AbstractWithExactFriction(AbstractWithFriction):
    """Second-order dynamics that solve friction exactly."""

    def suggest(self, curvature: Curvature) -> Suggestion:
        friction = 2 * curvature.smallest**0.5
        rule = "1 / root of the largest curvature"
        step, rule = curvature.within_noise(curvature.largest**-0.5, rule, friction)
        between = 2 / (step * curvature.smallest**0.5)
        return Suggestion(step, rule, between, step / friction, {"friction": friction})


class Damping(NamedTuple):
    """The exact solution of friction over the time h: ρ ← decay·ρ + sd·ξ."""

    decay: Scalar  # c = exp(−γh)
    sd: Scalar  # √(1 − c²)
    share: Scalar
    """The factor of V in the covariance I − share·V of ξ that corrects for kicks of covariance h²V.

    A kick that is half before and half after the friction adds (1 + c)²h²V/4 to ρ, and so does, up
    to order h², a kick between two of them. With γ → ∞ it also is what the kick adds to θ.
    """


def damping(friction: float, h: Scalar) -> Damping:
    """Friction γ over the time h."""
    decay, variance = jnp.exp(-friction * h), -jnp.expm1(-2 * friction * h)
    return Damping(decay, jnp.sqrt(variance), ((1 + decay) * h / 2) ** 2 / variance)


def damped_transition(
    momentum: Vector, friction: Damping, kick: Scalar, geometry: AbstractLinearMap
) -> Transition:
    """The transition of ρ' = cρ − kick·Cᵀg + sd·ξ: its density at ρ' has x = (ρ' − cρ)/sd."""
    at_rest = (1 - friction.decay) * momentum / friction.sd

    def to_zero() -> Vector:
        return -friction.decay * momentum / friction.sd

    return Transition(at_rest, to_zero, kick / friction.sd, geometry)
