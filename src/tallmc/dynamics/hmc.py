"""Hamiltonian Monte Carlo: leapfrog trajectories of random length, each with an accept step.

    every L_k steps   ρ ~ N(0, I),   L_k ~ uniform on L ± j(L − 1),   δ_k ~ uniform on √ε[1 − ¾j, 1]
    leapfrog          ρ ← ρ − (δ_k/2) Cᵀ∇f(θ);   θ ← θ + δ_k Cρ;   ρ ← ρ − (δ_k/2) Cᵀ∇f(θ)
    after L_k steps   accepted with probability min(1, exp(f(θ) + ‖ρ‖²/2 − f(θ') − ‖ρ'‖²/2))

A step of the chain is one leapfrog step, so chains whose trajectories differ in length do not wait
for each other. The
position of the chain is the last accepted one. L_k depends on neither position nor momentum. So the
number of trajectories that a chain has completed after t steps does not either, and the position
after t steps follows exp(−f) in equilibrium. (The length of a trajectory of NUTS depends on the
trajectory: its position after t leapfrog steps would be biased.) Random lengths avoid trajectories
that return to where they began; random steps get a chain out of regions of high curvature, in which
the largest step is never accepted (Neal, 2011, section 3.2). Where the posterior is nearly Gaussian
and the geometry fits it, a small jitter j makes draws cheaper: with j = 1 the mean step is 5/8 of
the largest, and a quarter of the intervals of L steps has no end of a trajectory. In coordinates of
group effects (`EffectMap`) the middle of a leapfrog step is a rotation, and the force is what is
left of the gradient.

With a mixture that approximates the posterior (`ModeJumpingHMC`), a share of the trajectories is
replaced by an independent proposal θ' from the mixture, of density q, accepted with probability
min(1, exp(f(θ) − f(θ') + log q(θ) − log q(θ'))). Such proposals move between modes.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._core.arrays import Scalar, Vector, check_numeric
from .._core.errors import InvalidInput, check_int, check_number
from .._core.random import standard_normal
from .._rows.passes import Sum
from ..models.posterior import AbstractPosterior
from .dynamics import (
    AbstractDynamics,
    AbstractDynamicsState,
    Curvature,
    DynamicsStep,
    Evaluate,
    Suggestion,
    acceptance_rate,
    potential_drop,
)

# A mixture of Student t distributions, one per mode of the posterior, to propose positions from.
#
#     q(θ) = Σ_m w_m t_ν(θ; μ_m, C_m C_mᵀ),   ν = d + 5
#
# The tails of a proposal must not be lighter than those of the posterior, or a chain stays in a
# tail for long. In d dimensions a fixed ν would make the bulk of the mixture unlike a Gaussian.


_DEGREES_OF_FREEDOM = 5  # in addition to d


class Mixture(eqx.Module):
    """A mixture of t distributions."""

    centres: Float[Array, "modes d"]  # μ_m
    factors: Float[Array, "modes d d"]  # C_m, lower triangular
    log_weights: Float[Array, " modes"]  # log w_m; the w_m sum to one

    def draw(self, key: PRNGKeyArray, steps: int) -> Float[Array, "steps d"]:
        """Draw `steps` positions."""
        mode_key, normal_key, scale_key = jax.random.split(key, 3)
        dim, dtype = self.centres.shape[1], self.centres.dtype
        mode = jax.random.categorical(mode_key, self.log_weights, shape=(steps,))
        normal = standard_normal(normal_key, (steps, dim), dtype)
        freedom = dim + _DEGREES_OF_FREEDOM
        # χ²_ν = 2 Gamma(ν/2)
        mean_square = 2 * jax.random.gamma(scale_key, freedom / 2, (steps,), dtype) / freedom
        spread = normal / jnp.sqrt(mean_square)[:, None]
        moves = jnp.einsum(
            "sij,sj->si", self.factors[mode], spread, precision=jax.lax.Precision.HIGHEST
        )
        return self.centres[mode] + moves

    def log_density(self, position: Vector) -> Scalar:
        """Log q(θ), up to a constant."""
        dim = position.shape[0]
        freedom = dim + _DEGREES_OF_FREEDOM

        def of_mode(centre: Array, factor: Array) -> Scalar:
            standardised = solve_triangular(factor, position - centre, lower=True)
            bulk = jnp.log1p(jnp.sum(standardised**2) / freedom)
            return -(freedom + dim) / 2 * bulk - jnp.sum(jnp.log(jnp.diagonal(factor)))

        each = jax.vmap(of_mode)(self.centres, self.factors)
        return jax.nn.logsumexp(self.log_weights + each)


_JUMP_SHARE = 0.5  # of the trajectories, if there is a mixture
_SPREAD_OF_LEAPS = 0.75  # with full jitter, relative to the largest leapfrog step
_SUGGESTED_LENGTH = 10


def mean_leap_share(jitter: float) -> float:
    """The mean leapfrog step, relative to the largest one."""
    return 1 - _SPREAD_OF_LEAPS * jitter / 2


class HMCState(AbstractDynamicsState):
    """The last accepted point, and the trajectory that began there."""

    position: Vector
    coordinates: Vector
    force: Vector
    potential: Sum | None
    moving: Vector  # Coordinates of the trajectory
    moving_force: Vector
    momentum: Vector
    kinetic: Scalar  # Kinetic energy at the beginning of the trajectory
    leap: Scalar  # Leapfrog step of the trajectory, relative to the largest one
    left: Int[Array, ""]
    """Steps until the trajectory ends; zero if the next step begins a trajectory."""
    rate: Scalar  # Acceptance probability of the last trajectory


class HMCNoise(eqx.Module):
    """Random numbers of one step. A step uses those that it needs."""

    momentum: Float[Array, "*steps d"]
    log_uniform: Float[Array, "*steps"]
    length: Float[Array, "*steps"]  # Uniform number for the length of a trajectory
    leap: Float[Array, "*steps"]  # Leapfrog step of a trajectory, relative to the largest one
    jump: tuple[Float[Array, "*steps"], Float[Array, "*steps d"]] | None
    """Uniform number that decides between jump and trajectory, and the proposal of a jump."""


class HMC(AbstractDynamics):
    """Hamiltonian Monte Carlo; requires `AllRows()`.

    **Arguments:**

    - `length`: L, the mean number of leapfrog steps of a trajectory.
    - `jitter`: j in [0, 1], how much lengths and steps vary between trajectories.
    """

    paper = "Duane, Kennedy, Pendleton and Roweth (1987)"
    bias = "Exact: every ε leaves exp(−f) invariant."
    cost = "A step is one leapfrog step, which takes one pass over the data."
    exact_only = True
    evaluates_at_start = True

    length: int = _SUGGESTED_LENGTH
    jitter: float = eqx.field(default=1.0, kw_only=True)
    mixture: Mixture | None = eqx.field(default=None, repr=False, kw_only=True)
    """An approximation of the posterior to propose jumps from, or None."""

    def __post_init__(self) -> None:
        check_int("length", self.length, 1)
        check_number("jitter", self.jitter, 0, 1)

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> HMCState:
        estimate = evaluate(position, None)
        zero = jnp.zeros((), position.dtype)
        coordinates = self.geometry.coordinates(position)
        force = self.geometry.force(coordinates, position, estimate.gradient)
        return HMCState(
            position=position,
            coordinates=coordinates,
            force=force,
            potential=estimate.potential,
            moving=coordinates,
            moving_force=force,
            momentum=jnp.zeros_like(position),
            kinetic=zero,
            leap=zero,
            left=jnp.int32(0),
            rate=zero,
        )

    def noise(self, key: PRNGKeyArray, steps: int, like: Vector) -> HMCNoise:
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
            jax.random.uniform(
                leap_key, (steps,), like.dtype, 1 - _SPREAD_OF_LEAPS * self.jitter, 1.0
            ),
            jump,
        )

    def step(
        self, state: HMCState, evaluate: Evaluate, step_size: Scalar, noise: HMCNoise
    ) -> DynamicsStep:
        begins = state.left == 0
        spread = jnp.floor(self.jitter * (self.length - 1))
        drawn_length = self.length - spread + jnp.floor(noise.length * (2 * spread + 1))
        left = jnp.where(begins, drawn_length.astype(jnp.int32), state.left) - 1
        momentum = jnp.where(begins, noise.momentum, state.momentum)
        kinetic = jnp.where(begins, jnp.sum(noise.momentum**2) / 2, state.kinetic)
        origin = jnp.where(begins, state.coordinates, state.moving)
        force = jnp.where(begins, state.force, state.moving_force)

        relative_leap = jnp.where(begins, noise.leap, state.leap)
        leap = jnp.sqrt(step_size) * relative_leap
        moving, momentum = self.geometry.flow(origin, momentum - leap / 2 * force, leap)
        there = self.geometry.placed(moving)
        jumps = jnp.bool_(False)
        if self.mixture is not None:
            assert noise.jump is not None, "drawn with a mixture"
            choice, proposal = noise.jump
            jumps = begins & (choice < _JUMP_SHARE)
            there = jnp.where(jumps, proposal, there)
            moving = jnp.where(jumps, self.geometry.coordinates(proposal), moving)
            left = jnp.where(jumps, 0, left)
        estimate = evaluate(there, None)
        force = self.geometry.force(moving, there, estimate.gradient)
        momentum = momentum - leap / 2 * force

        log_ratio = kinetic - jnp.sum(momentum**2) / 2
        if self.mixture is not None:
            log_density = self.mixture.log_density
            log_ratio = jnp.where(
                jumps, log_density(state.position) - log_density(there), log_ratio
            )
        log_ratio += potential_drop(state.potential, estimate.potential)
        log_volume = self.geometry.log_volume
        log_ratio += log_volume(there) - log_volume(state.position)
        accept = (left == 0) & (noise.log_uniform < log_ratio)  # NaN rejects
        rate = acceptance_rate(log_ratio)
        position, coordinates, kept_force, potential = jax.tree.map(
            lambda new, old: jnp.where(accept, new, old),
            (there, moving, force, estimate.potential),
            (state.position, state.coordinates, state.force, state.potential),
        )
        last_rate = jnp.where((left == 0) & ~jumps, rate, state.rate)
        trajectory = moving, force, momentum, kinetic, relative_leap, left
        here = position, coordinates, kept_force, potential
        moved = HMCState(*here, *trajectory, last_rate)
        return DynamicsStep(moved, estimate, {"acceptance_rate": moved.rate})

    def suggest(self, curvature: Curvature) -> Suggestion:
        # Leapfrog steps at half the stability limit of the fastest direction.
        step, others = 1 / curvature.largest, {"length": _SUGGESTED_LENGTH}
        return Suggestion(step, "1 / largest curvature", _SUGGESTED_LENGTH, step, others)


class ModeJumpingHMC(HMC):
    """Hamiltonian Monte Carlo with jumps between known modes; requires `AllRows()`.

    Half of the trajectories are proposals from a mixture of t distributions around the modes.
    Exact, whatever the mixture; the mixture decides how often a chain changes its mode. A mode that
    is not in the mixture is not proposed.

    **Arguments:**

    - `length`: the mean number of leapfrog steps of a trajectory.
    - `modes`: the modes, one per row (k, d).
    - `covariances`: the covariance of the posterior near each mode (k, d, d).
    - `weights`: the share of jumps to each mode (k,), positive; close to the mode's probability.
    """

    modes: Any = None
    covariances: Any = None
    weights: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        modes, covariances, weights = self._arrays()
        if modes.ndim != 2:
            raise InvalidInput("modes", "have shape (k, d)", f"shape {modes.shape}")
        k, d = modes.shape
        if covariances.shape != (k, d, d):
            shape = f"shape {covariances.shape}"
            raise InvalidInput("covariances", f"have shape ({k}, {d}, {d}) with these modes", shape)
        if not (np.linalg.eigvalsh(covariances)[:, 0] > 0).all():
            raise InvalidInput("covariances", "be positive definite", self.covariances)
        if weights.shape != (k,) or not (weights > 0).all():
            raise InvalidInput("weights", f"be {k} positive numbers with these modes", weights)

    def filled(self, posterior: AbstractPosterior) -> dict[str, Any]:
        modes, covariances, weights = self._arrays()
        if modes.shape[1] != posterior.dim:
            rule = f"have shape (k, {posterior.dim}) for this posterior"
            raise InvalidInput("modes", rule, f"shape {modes.shape}")
        parts = (modes, np.linalg.cholesky(covariances), np.log(weights / weights.sum()))
        mixture = Mixture(*(jnp.asarray(part, posterior.dtype) for part in parts))
        # The mixture replaces what it was made of.
        return {"mixture": mixture, "modes": None, "covariances": None, "weights": None}

    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        modes, covariances, weights = (
            np.asarray(check_numeric(name, getattr(self, name)), np.float64)
            for name in ("modes", "covariances", "weights")
        )
        return modes, covariances, weights
