"""Hamiltonian Monte Carlo: leapfrog trajectories of random length, each with an accept step.

    every L_k steps   ρ ~ N(0, I),   L_k ~ uniform on {1, …, 2L − 1},   δ_k ~ uniform on √ε [¼, 1]
    leapfrog          ρ ← ρ − (δ_k/2) Cᵀ∇f(θ);   θ ← θ + δ_k Cρ;   ρ ← ρ − (δ_k/2) Cᵀ∇f(θ)
    after L_k steps   accepted with probability min(1, exp(f(θ) + ‖ρ‖²/2 − f(θ') − ‖ρ'‖²/2))

Exact: every ε leaves exp(−f) invariant. A step of the chain is one leapfrog step, which takes one
pass over the data, so chains whose trajectories differ in length do not wait for each other. The
position of the chain is the last accepted one. L_k depends on neither position nor momentum. So the
number of trajectories that a chain has completed after t steps does not either, and the position
after t steps follows exp(−f) in equilibrium. (The length of a trajectory of NUTS depends on the
trajectory: its position after t leapfrog steps would be biased.) Random lengths avoid trajectories
that return to where they began; random steps get a chain out of regions of high curvature, in which
the largest step is never accepted (Neal, 2011, section 3.2).

With a mixture that approximates the posterior (`mode_jumps.py`), a share of the trajectories is
replaced by an independent proposal θ' from the mixture, of density q, accepted with probability
min(1, exp(f(θ) − f(θ') + log q(θ) − log q(θ'))). Such proposals move between modes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..core.errors import check_int
from ..core.linear_maps import AbstractLinearMap
from ..core.random import standard_normal
from ..rows.sums import Sum
from .accept import AbstractExact, potential_drop
from .base import (
    AbstractDynamicsState,
    Curvature,
    DynamicsChoice,
    DynamicsContext,
    DynamicsStep,
    Evaluate,
    Suggestion,
)
from .mixture import Mixture

_JUMP_SHARE = 0.5  # of the trajectories, if there is a mixture
_SMALLEST_LEAP = 0.25  # leapfrog step, relative to the largest one
_SUGGESTED_LENGTH = 10


class Point(eqx.Module):
    """A position with ∇f and f there."""

    position: Float[Array, " d"]
    gradient: Float[Array, " d"]
    potential: Sum


class HMCState(AbstractDynamicsState):
    """The last accepted point, and the trajectory that began there."""

    position: Float[Array, " d"]
    gradient: Float[Array, " d"]
    potential: Sum
    moving: Float[Array, " d"]
    """Position of the trajectory."""
    moving_gradient: Float[Array, " d"]
    momentum: Float[Array, " d"]
    kinetic: Float[Array, ""]
    """Kinetic energy at the beginning of the trajectory."""
    leap: Float[Array, ""]
    """Leapfrog step of the trajectory, relative to the largest one."""
    left: Int[Array, ""]
    """Steps until the trajectory ends; zero if the next step begins a trajectory."""
    rate: Float[Array, ""]
    """Acceptance probability of the last trajectory."""


class HMCNoise(eqx.Module):
    """Random numbers of one step. A step uses those that it needs."""

    momentum: Float[Array, "*steps d"]
    log_uniform: Float[Array, "*steps"]
    length: Float[Array, "*steps"]
    """Uniform number for the length of a trajectory."""
    leap: Float[Array, "*steps"]
    """Leapfrog step of a trajectory, relative to the largest one."""
    jump: tuple[Float[Array, "*steps"], Float[Array, "*steps d"]] | None
    """Uniform number that decides between jump and trajectory, and the proposal of a jump."""


class HMCDynamics(AbstractExact):
    """Hamiltonian Monte Carlo prepared for one posterior.

    **Arguments:**

    - `geometry`: the linear map C of the coordinates.
    - `length`: L, the mean number of leapfrog steps of a trajectory.
    - `mixture`: an approximation of the posterior to propose jumps from, or None.

    >>> import jax.numpy as jnp, tallmc
    >>> from tallmc.core.linear_maps import IdentityMap
    >>> tallmc.dynamics.HMCDynamics(IdentityMap(), jnp.asarray(5.0)).evaluates_at_start
    True
    """

    geometry: AbstractLinearMap
    length: Float[Array, ""]
    mixture: Mixture | None = None
    evaluates_at_start = True

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> HMCState:
        estimate = evaluate(position, None)
        assert estimate.potential is not None, "an accept step requires the potential of all rows"
        zero = jnp.zeros((), position.dtype)
        return HMCState(
            position,
            estimate.gradient,
            estimate.potential,
            position,
            estimate.gradient,
            jnp.zeros_like(position),
            zero,
            zero,
            jnp.int32(0),
            zero,
        )

    def noise(self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]) -> HMCNoise:
        momentum_key, accept_key, length_key, leap_key, jump_key = jax.random.split(key, 5)
        jump = None
        if self.mixture is not None:
            choice_key, draw_key = jax.random.split(jump_key)
            choice = jax.random.uniform(choice_key, (steps,), like.dtype)
            jump = choice, self.mixture.draw(draw_key, steps)
        return HMCNoise(
            standard_normal(momentum_key, (steps, *like.shape), like.dtype),
            -jax.random.exponential(accept_key, (steps,), like.dtype),
            jax.random.uniform(length_key, (steps,), like.dtype),
            jax.random.uniform(leap_key, (steps,), like.dtype, _SMALLEST_LEAP, 1.0),
            jump,
        )

    def step(
        self,
        state: HMCState,
        evaluate: Evaluate,
        step_size: Float[Array, ""],
        noise: HMCNoise,
    ) -> DynamicsStep:
        begins = state.left == 0
        drawn_length = 1 + jnp.floor(noise.length * (2 * self.length - 1)).astype(jnp.int32)
        left = jnp.where(begins, drawn_length, state.left) - 1
        momentum = jnp.where(begins, noise.momentum, state.momentum)
        kinetic = jnp.where(begins, jnp.sum(noise.momentum**2) / 2, state.kinetic)
        origin = jnp.where(begins, state.position, state.moving)
        gradient = jnp.where(begins, state.gradient, state.moving_gradient)

        relative_leap = jnp.where(begins, noise.leap, state.leap)
        leap = jnp.sqrt(step_size) * relative_leap
        momentum = momentum - leap / 2 * self.geometry.pull(gradient)
        moving = origin + leap * self.geometry.push(momentum)
        jumps = jnp.bool_(False)
        if self.mixture is not None:
            assert noise.jump is not None, "drawn with a mixture"
            choice, proposal = noise.jump
            jumps = begins & (choice < _JUMP_SHARE)
            moving = jnp.where(jumps, proposal, moving)
            left = jnp.where(jumps, 0, left)
        estimate = evaluate(moving, None)
        assert estimate.potential is not None, "an accept step requires the potential of all rows"
        momentum = momentum - leap / 2 * self.geometry.pull(estimate.gradient)

        log_ratio = kinetic - jnp.sum(momentum**2) / 2
        if self.mixture is not None:
            log_density = self.mixture.log_density
            log_ratio = jnp.where(
                jumps, log_density(state.position) - log_density(moving), log_ratio
            )
        log_ratio += potential_drop(state.potential, estimate.potential)
        accept = (left == 0) & (noise.log_uniform < log_ratio)  # NaN rejects
        rate = jnp.exp(jnp.minimum(jnp.nan_to_num(log_ratio, nan=-jnp.inf), 0))
        there = Point(moving, estimate.gradient, estimate.potential)
        here = Point(state.position, state.gradient, state.potential)
        kept: Any = jax.tree.map(lambda new, old: jnp.where(accept, new, old), there, here)
        moved = HMCState(
            kept.position,
            kept.gradient,
            kept.potential,
            moving,
            estimate.gradient,
            momentum,
            kinetic,
            relative_leap,
            left,
            jnp.where((left == 0) & ~jumps, rate, state.rate),
        )
        return DynamicsStep(moved, estimate, {"acceptance_rate": moved.rate})


@dataclasses.dataclass(frozen=True)
class HMC(DynamicsChoice):
    """Hamiltonian Monte Carlo; requires `AllRows()`.

    **Arguments:**

    - `length`: L, the mean number of leapfrog steps of a trajectory.

    **Raises:** `InvalidInput` if `length` is not a positive int.

    >>> import tallmc
    >>> tallmc.dynamics.HMC(length=8)
    HMC(length=8)
    """

    length: int = _SUGGESTED_LENGTH
    needs = AnchorLevel.NOTHING
    exact_only = True
    takes_geometry = True
    corrects_through = ()
    has_transition = False

    def __post_init__(self) -> None:
        check_int("length", self.length, 1)

    def suggest(self, curvature: Curvature) -> Suggestion:
        return suggestion(curvature)

    def prepare(self, context: DynamicsContext) -> HMCDynamics:
        length = jnp.asarray(self.length, context.posterior.dtype)
        return HMCDynamics(context.geometry, length)


def suggestion(curvature: Curvature) -> Suggestion:
    """Suggest leapfrog steps at half the stability limit of the fastest direction."""
    step, others = 1 / curvature.largest, {"length": _SUGGESTED_LENGTH}
    return Suggestion(step, "1 / largest curvature", _SUGGESTED_LENGTH, step, others)
