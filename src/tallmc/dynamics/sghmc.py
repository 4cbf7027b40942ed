"""Underdamped Langevin dynamics by Euler–Maruyama: SGHMC in the papers, SGULD in li-2021 (eq. 3).

    θ' = θ + (ε/2) Cρ
    ρ' = ρ − (ε/2) (Cᵀ∇f̂(θ) + γρ) + √(εγ) ξ,   ξ ~ N(0, I)

This is nemeth-2021, Table 1 (SGHMC), by eq. 11. γ is the friction, CCᵀ the inverse mass matrix;
li-2021 writes h for ε/2. Both lines use the old state, so the chain is stable only if ε/2 < γ/λ in
every direction of curvature λ. With γ ≫ √λ the dynamics is Langevin dynamics with step size ε/γ.
Critical damping, γ = 2√λ, mixes fastest in a direction of curvature λ.

Gradient noise can be corrected by injecting less noise, ξ ~ N(0, I − (ε/4γ)V), or by more friction,
γ + (ε/4)V (li-2021, app. F).
"""

from __future__ import annotations

from typing import Self

import equinox as eqx
import jax.numpy as jnp

from .._core.arrays import AbstractLinearMap, IdentityMap, Scalar, Vector
from ..correction import NoiseCorrection
from ..models.posterior import AbstractPosterior
from ..subsample.selection import Transition
from .dynamics import DynamicsStep, Evaluate, drag, reduced_noise
from .momentum import AbstractWithFriction, MomentumState


class SGHMC(AbstractWithFriction):
    """Underdamped Langevin dynamics in the Euler form of the papers; `friction` is γ."""

    paper = "Chen, Fox and Guestrin (2014)"
    bias = "The bias at fixed ε is of order ε."
    has_transition = True
    corrects_through = ("noise", "friction")

    adds_friction: bool = eqx.field(default=False, static=True, repr=False, kw_only=True)
    """Whether gradient noise is corrected by more friction, not by less injected noise."""

    def prepare(
        self,
        posterior: AbstractPosterior,
        geometry: AbstractLinearMap = IdentityMap(),  # noqa: B008  (frozen)
        correction: NoiseCorrection | None = None,
    ) -> Self:
        adds_friction = correction is not None and correction.through == "friction"
        return super().prepare(posterior, geometry, correction)._with(adds_friction=adds_friction)

    def step(
        self, state: MomentumState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        h, momentum = step_size / 2, state.momentum
        sd = jnp.sqrt(2 * self.friction * h)
        at_rest = h * self.friction * momentum / sd

        def to_zero() -> Vector:  # of the momentum, which has no C: ρ ~ N(0, I)
            return at_rest - state.momentum / sd

        estimate = evaluate(state.position, Transition(at_rest, to_zero, h / sd, self.geometry))
        added, too_noisy = drag(momentum, estimate.noise if self.adds_friction else None, h)
        injected = reduced_noise(
            noise, None if self.adds_friction else estimate.noise, h / (2 * self.friction)
        )
        position = state.position + self.geometry.push(h * momentum)
        force = self.geometry.pull(estimate.gradient) + self.friction * momentum + added
        moved = MomentumState(position, momentum - h * force + sd * injected.noise)
        outcome = jnp.maximum(injected.outcome, too_noisy)
        return DynamicsStep(moved, estimate, injected.stats, outcome)
