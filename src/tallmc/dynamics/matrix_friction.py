"""SGHMC with a friction matrix C, as in Table 1 of nemeth-2021 (Chen, Fox and Guestrin, 2014).

    θ' = θ + (ε/2) Kρ
    ρ' = ρ − (ε/2) (Kᵀ∇f̂(θ) + Cρ) + √ε Z,   Z ~ N(0, C)

This is the recipe with H = f + ρᵀρ/2, D = diag(0, C) and Q = [[0, −I], [I, 0]], by eq. 11, in steps
that cost O(d²) in place of O(k³). KKᵀ is the inverse mass matrix of the geometry; Table 1 has
K = I. With C = γI it is `Underdamped(γ)`. A matrix can damp every direction critically: C = 2H^½
for K = I, where one friction γ = 2√λ suits a single curvature λ.

The bias at fixed ε is of order ε, and the chain is stable only if (ε/2)λ < c in every direction of
curvature λ and friction c. Gradient noise of covariance V adds (ε/4)V to C in the noise of ρ. The
noise correction injects Z ~ N(0, C − (ε/4)V), in O(d³) per step, which needs C ⪰ (ε/4)V (section 3
of the paper, with h = ε). Table 1 asks for C ⪰ hV, which is enough. Where the condition fails,
noise stays uncorrected, and the chain reports its share.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..core.arrays import check_numeric, on_device
from ..core.errors import InvalidInput
from ..core.linear_maps import AbstractLinearMap, dot
from ..correction import diffusion_noise, transformed
from .base import (
    AbstractDiffusion,
    Curvature,
    DynamicsChoice,
    DynamicsContext,
    DynamicsStep,
    Evaluate,
    Suggestion,
)
from .momentum import MomentumState, kicked_suggestion, with_momentum


class MatrixFrictionDynamics(AbstractDiffusion):
    """SGHMC with a friction matrix, prepared for one posterior.

    **Arguments:**

    - `geometry`: the linear map K of the coordinates.
    - `friction`: the friction matrix C.
    - `root`: the symmetric square root of C.

    >>> import jax.numpy as jnp, tallmc
    >>> from tallmc.core.linear_maps import IdentityMap
    >>> two = 2 * jnp.eye(1)
    >>> tallmc.dynamics.MatrixFrictionDynamics(IdentityMap(), two**2, two).friction
    Array([[4.]], dtype=float32)
    """

    geometry: AbstractLinearMap
    friction: Float[Array, "d d"]
    root: Float[Array, "d d"]
    evaluates_at_start = False

    def init(
        self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate
    ) -> MomentumState:
        return with_momentum(key, position)

    def step(
        self,
        state: MomentumState,
        evaluate: Evaluate,
        step_size: Float[Array, ""],
        noise: Float[Array, " d"],
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


@dataclasses.dataclass(frozen=True, eq=False)
class MatrixFriction(DynamicsChoice):
    """SGHMC with a friction matrix, in the Euler form of the papers.

    **Arguments:**

    - `friction`: C, a symmetric positive definite d×d matrix. A number γ is γI, and d numbers are
      the diagonal.

    **Raises:** `InvalidInput` if `friction` is not numbers, or, when it is prepared, not positive
    definite or of another dimension than the posterior.

    >>> import tallmc
    >>> tallmc.dynamics.MatrixFriction([[2.0, 0.5], [0.5, 1.0]]).corrects_through
    ('noise',)
    """

    friction: Any
    needs = AnchorLevel.NOTHING
    exact_only = False
    takes_geometry = True
    corrects_through = ("noise",)
    has_transition = False

    def __post_init__(self) -> None:
        check_numeric("friction", self.friction)

    def suggest(self, curvature: Curvature) -> Suggestion:
        return kicked_suggestion(curvature)

    def prepare(self, context: DynamicsContext) -> MatrixFrictionDynamics:
        d, dtype = context.posterior.dim, context.posterior.dtype
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
        return MatrixFrictionDynamics(
            context.geometry, on_device(matrix, dtype), on_device(root, dtype)
        )
