"""State shared by dynamics with momentum: ρ ~ N(0, I) at the start and in the stationary law."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..core.linear_maps import AbstractLinearMap
from ..core.random import standard_normal
from ..subsample.selection import Transition
from .base import AbstractDynamicsState, Curvature, Suggestion, smaller_step


class MomentumState(AbstractDynamicsState):
    """Position θ and momentum ρ."""

    position: Float[Array, " d"]
    momentum: Float[Array, " d"]


def with_momentum(key: PRNGKeyArray, position: Float[Array, " d"]) -> MomentumState:
    """Return the state of a chain before its first step, with momentum ρ ~ N(0, I)."""
    return MomentumState(position, standard_normal(key, position.shape, position.dtype))


class Damping(NamedTuple):
    """The exact solution of friction over the time h: ρ ← decay·ρ + sd·ξ."""

    decay: Float[Array, ""]
    """c = exp(−γh)."""
    sd: Float[Array, ""]
    """√(1 − c²)."""
    share: Float[Array, ""]
    """The factor of V in the covariance I − share·V of ξ that corrects for kicks of covariance h²V.

    A kick that is half before and half after the friction adds (1 + c)²h²V/4 to ρ, and so does, up
    to order h², a kick between two of them. With γ → ∞ it also is what the kick adds to θ.
    """


def damping(friction: Float[Array, ""], h: Float[Array, ""]) -> Damping:
    """Friction γ over the time h."""
    decay, variance = jnp.exp(-friction * h), -jnp.expm1(-2 * friction * h)
    return Damping(decay, jnp.sqrt(variance), ((1 + decay) * h / 2) ** 2 / variance)


def damped_transition(
    momentum: Float[Array, " d"],
    friction: Damping,
    kick: Float[Array, ""],
    geometry: AbstractLinearMap,
) -> Transition:
    """The transition of ρ' = cρ − kick·Cᵀg + sd·ξ: its density at ρ' has x = (ρ' − cρ)/sd."""
    at_rest = (1 - friction.decay) * momentum / friction.sd

    def to_zero() -> Float[Array, " d"]:
        return -friction.decay * momentum / friction.sd

    return Transition(at_rest, to_zero, kick / friction.sd, geometry)


def damped_suggestion(curvature: Curvature) -> Suggestion:
    """Suggest settings for second-order steps with friction that is solved exactly."""
    friction = 2 * curvature.smallest**0.5
    step, rule = smaller_step(
        curvature.largest**-0.5,
        "1 / root of the largest curvature",
        friction * curvature.noise_limit,
    )
    between = 2 / (step * curvature.smallest**0.5)
    return Suggestion(step, rule, between, step / friction, {"friction": friction})


def kicked_suggestion(curvature: Curvature) -> Suggestion:
    """Suggest settings for Euler steps of dynamics with friction."""
    frequency = curvature.largest**0.5
    friction = 2 * frequency
    step, rule = smaller_step(
        0.2 / frequency, "0.2 / root of the largest curvature", friction * curvature.noise_limit
    )
    between = friction / (step * curvature.smallest)
    return Suggestion(step, rule, between, step / friction, {"friction": friction})
