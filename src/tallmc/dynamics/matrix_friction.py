"""SGHMC with a friction matrix C, as in Table 1 of nemeth-2021 (Chen, Fox and Guestrin, 2014).

    θ' = θ + (ε/2) Kρ
    ρ' = ρ − (ε/2) (Kᵀ∇f̂(θ) + Cρ) + √ε Z,   Z ~ N(0, C)

This is the recipe with H = f + ρᵀρ/2, D = diag(0, C) and Q = [[0, −I], [I, 0]], by eq. 11.
KKᵀ is the inverse mass matrix of the geometry; Table 1 has K = I. With C = γI it is `SGHMC(γ)`. A
matrix can damp every direction critically: C = 2H^½ for K = I, where one friction γ = 2√λ suits a
single curvature λ.

The chain is stable only if (ε/2)λ < c in every direction of curvature λ and friction c. Gradient
noise of covariance V adds (ε/4)V to C in the noise of ρ. The noise correction injects
Z ~ N(0, C − (ε/4)V), which needs C ⪰ (ε/4)V (section 3 of the paper, with h = ε). Table 1 asks for
C ⪰ hV, which is enough. Where the condition fails, noise stays uncorrected, and the chain reports
its share.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._core.arrays import Scalar, Vector, check_numeric, dot, on_device
from .._core.errors import InvalidInput
from ..models.posterior import AbstractPosterior
from .dynamics import DynamicsStep, Evaluate, diffusion_noise, transformed
from .momentum import AbstractWithMomentum, MomentumState


class MatrixFriction(AbstractWithMomentum):
    """SGHMC with a friction matrix, in the Euler form of the papers.

    `friction` is C, a symmetric positive definite d×d matrix; a number γ is γI, and d numbers are
    the diagonal.
    """

    paper = "Chen, Fox and Guestrin (2014)"
    bias = "The bias at fixed ε is of order ε."
    cost = "A step costs O(d²), and O(d³) with a noise correction."

    friction: Any
    root: Any = eqx.field(default=None, repr=False, kw_only=True)  # The symmetric square root of C

    def __post_init__(self) -> None:
        check_numeric("friction", self.friction)

    def filled(self, posterior: AbstractPosterior) -> dict[str, Any]:
        d, dtype = posterior.dim, posterior.dtype
        given = np.asarray(self.friction, np.float64)
        matrix = given if given.ndim == 2 else given * np.eye(d)
        well_formed = matrix.shape == (d, d) and np.isfinite(matrix).all()
        if not well_formed or not np.allclose(matrix, matrix.T, rtol=1e-6):
            rule = f"be a number, {d} numbers or a symmetric {d}×{d} matrix"
            raise InvalidInput("friction", rule, self.friction)
        values, axes = np.linalg.eigh(matrix)
        if values[0] <= 0:
            rule = "be positive definite: without friction gradient noise adds energy for ever"
            raise InvalidInput("friction", rule, self.friction)
        root = (axes * np.sqrt(values)) @ axes.T
        return {"friction": on_device(matrix, dtype), "root": on_device(root, dtype)}

    def step(
        self, state: MomentumState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        h, momentum = step_size / 2, state.momentum
        estimate = evaluate(state.position, None)
        position = state.position + self.geometry.push(h * momentum)
        force = self.geometry.pull(estimate.gradient) + dot(self.friction, momentum)
        momentum = momentum - h * force
        if estimate.noise is None:
            thermal = jnp.sqrt(step_size) * dot(self.root, noise)
            return DynamicsStep(MomentumState(position, momentum + thermal), estimate, {})
        one = jnp.eye(noise.shape[0], dtype=noise.dtype)
        kicks = transformed(step_size / 4 * estimate.noise, one)
        injected = diffusion_noise(noise, self.friction, kicks)
        moved = MomentumState(position, momentum + jnp.sqrt(step_size) * injected.noise)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)
