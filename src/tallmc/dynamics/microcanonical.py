"""Microcanonical Langevin dynamics, MCLMC (Robnik and Seljak, 2024), with stochastic gradients.

    A  θ ← θ + (ε/4) Cρ
    B  ρ ← √d (ρ/√d + e (sinh δ + a (cosh δ − 1))) / (cosh δ + a sinh δ),
       e = −Cᵀ∇f̂/‖Cᵀ∇f̂‖,   a = e·ρ/√d,   δ = (ε/4) √d ‖Cᵀ∇f̂‖/(d − 1)
    O  ρ ← √d ω/‖ω‖,   ω = cρ + √(1 − c²) ξ,   c = exp(−γε/2),   ξ ~ N(0, I)

A step is A B O B A with one gradient, after the first A. B is the exact solution of
dρ = −(d/(d − 1)) (I − ρρᵀ/d) Cᵀ∇f̂ dt over the time ε/4 at a fixed gradient. The momentum has the
fixed length √d, so no gradient can make a step longer than (ε/2)√d in the coordinates C. The papers
write u = ρ/√d, h = (ε/2)√d for the length of a step and L = √d/γ for the length over which the
direction is forgotten; O is their refreshment, u + νξ normalised with ν² = (exp(2h/L) − 1)/d. The
dynamics needs d ≥ 2. As d → ∞ it becomes underdamped Langevin dynamics with friction γ.

The stationary law of the diffusion is exp(−f) times the uniform law of ρ on its sphere, whatever γ.

Gradient noise of covariance V in the coordinates C turns ρ at random. Noise that is equal in all
directions, V = vI, adds to O, which may have any strength. Other noise prefers some directions
(Sommer et al., 2026, "SMILE"). Two remedies make the noise isotropic: the coordinates
`NoiseDiagonal()`, which is the noise preconditioning of that paper with a fixed diagonal, and a
correction through the injected noise, ξ ~ N(0, I − (d/(d − 1))² (1 + c)²/(1 − c²) (ε²/16) V), after
which both together are isotropic. With the correction, ω = cρ + √(1 − c²) (I − ρρᵀ/2d) ξ. Noise of
covariance S in B changes the mean of ρ by −(I − ρρᵀ/d)Sρ/2d, and without the factor I − ρρᵀ/2d the
same noise in O by twice as much.

Only the abstract and reviews of Sommer et al. (2026) were at hand. What follows from the equations
above is tested here: the stationary law, the part that the noise plays, and the effect of the
remedies. Not built, because the formulas could not be checked: the running estimate of the
preconditioner, the tuner of the step size by the variance of the energy, and the guardrails.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from .._core.arrays import Scalar, Vector
from .._core.errors import InvalidInput
from ..models.posterior import AbstractPosterior
from .dynamics import DynamicsStep, Evaluate, reduced_noise
from .momentum import AbstractWithExactFriction, MomentumState, damping, with_momentum


class Microcanonical(AbstractWithExactFriction):
    """Microcanonical Langevin dynamics: the momentum has a fixed length, gradients turn it.

    `friction` is γ, the rate at which the direction is forgotten; √d/L in the papers.
    """

    paper = "Sommer, Diao, Robnik, Seljak and Rügamer (2026)"
    bias = (
        "Steps are symmetric, and the bias is of order ε² with exact gradients. Gradient noise "
        "that is equal in all directions adds no bias to leading order; other noise adds a bias of "
        "order ε."
    )

    def filled(self, posterior: AbstractPosterior) -> dict[str, Any]:
        if posterior.dim < 2:
            rule = "not be Microcanonical for a posterior with one parameter"
            raise InvalidInput("dynamics", rule, self, "Use BAOAB(...) or Langevin().")
        return {}

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> MomentumState:
        return MomentumState(position, on_sphere(with_momentum(key, position).momentum))

    def step(
        self, state: MomentumState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        h, d = step_size / 2, state.position.shape[0]
        halfway = state.position + self.geometry.push(h / 2 * state.momentum)
        estimate = evaluate(halfway, None)
        gradient = self.geometry.pull(estimate.gradient)
        friction = damping(self.friction, h)
        share = (d / (d - 1)) ** 2 * friction.share
        injected = reduced_noise(noise, estimate.noise, share)
        momentum = turned(state.momentum, gradient, h / 2)
        thermal = injected.noise
        if estimate.noise is not None:
            thermal = thermal - momentum * (jnp.sum(momentum * thermal) / (2 * d))
        momentum = on_sphere(friction.decay * momentum + friction.sd * thermal)
        momentum = turned(momentum, gradient, h / 2)
        moved = MomentumState(halfway + self.geometry.push(h / 2 * momentum), momentum)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)


def on_sphere(momentum: Vector) -> Vector:
    """The momentum with length √d."""
    return momentum * (momentum.shape[0] ** 0.5 / jnp.linalg.norm(momentum))


def turned(momentum: Vector, gradient: Vector, time: Scalar) -> Vector:
    """B over this time, in terms of exp(−δ), which does not overflow."""
    d = momentum.shape[0]
    size = jnp.linalg.norm(gradient)
    towards = -gradient / jnp.maximum(size, jnp.finfo(size.dtype).tiny)
    direction = momentum / d**0.5
    decay = jnp.exp(-time * d**0.5 * size / (d - 1))
    aligned = jnp.sum(towards * direction)
    along = (1 - decay) * (1 + decay + aligned * (1 - decay))
    return on_sphere(along * towards + 2 * decay * direction)
