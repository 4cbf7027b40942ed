"""Preconditioned Langevin dynamics, pSGLD (Li, Chen, Carlson and Carin, 2016).

    V ← αV + (1 − α) (∇f̂/N)²,   G = 1/(λ + √V)
    θ' = θ + (ε/2) (Γ − G ∇f̂(θ)) + √(εG) η,   Γ_j = ∂G_j/∂θ_j

Each parameter has its own step size, set by the size of its gradients. Γ keeps the target of the
diffusion right while G changes with θ; most code leaves it out (`gamma=False`). Γ needs the
diagonal of the Hessian, which is estimated without bias from the same rows by one directional
derivative along random signs.

Γ covers the newest term of V only, although the older terms depend on the path of the chain too.
With α = 0 the target is right as ε → 0. With α near 1 it is nearly right if V is almost constant;
`bias` says when. Gradient noise of covariance C is corrected by η ~ N(0, I − (ε/4) √G C √G).
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from .._core.arrays import Scalar, Vector
from .._core.errors import InvalidInput, check_number
from .._core.random import random_words, standard_normal
from ..correction import Covariance
from ..models.posterior import AbstractPosterior
from ..subsample.selection import Estimate
from .dynamics import (
    AbstractDynamics,
    AbstractDynamicsState,
    DynamicsStep,
    Evaluate,
    merged_normal,
    reduced_noise,
)


class MeanSquareState(AbstractDynamicsState):
    """Position θ and V, the running mean of the squared gradients."""

    position: Vector
    mean_square: Vector


class PreconditionedLangevin(AbstractDynamics):
    """Preconditioned Langevin dynamics, pSGLD.

    **Arguments:**

    - `decay`: α, the decay of the running mean of squared gradients.
    - `regulariser`: λ.
    - `gamma`: whether the drift includes Γ.
    """

    paper = "Li, Chen, Carlson and Carin (2016)"
    bias = (
        "Of order ε, as in Langevin dynamics. Without Γ (`gamma=False`) there is a bias that no "
        "step size removes. With Γ and α near 1 the target is nearly right if the chain crosses "
        "the posterior in far fewer than 1/(1 − α) steps; for a slower chain the error is as large "
        "as without Γ."
    )
    cost = "Γ takes one directional derivative of the gradient per step."
    takes_geometry = False
    evaluates_at_start = True
    unseen_by_pairs = "the bias of a preconditioner that follows the path of the chain"

    decay: float = 0.99
    regulariser: float = 1e-5
    gamma: bool = eqx.field(default=True, static=True)
    n_rows: float = eqx.field(default=math.nan, repr=False, kw_only=True)  # N

    def __post_init__(self) -> None:
        check_number("decay", self.decay, 0, 1)
        check_number("regulariser", self.regulariser, 0, low_open=True)
        if not isinstance(self.gamma, bool):
            raise InvalidInput("gamma", "be True or False", self.gamma)

    def own_coordinates(self, hessian: np.ndarray, noise: np.ndarray, n_rows: int) -> np.ndarray:
        # At a draw from the posterior the exact gradient has variance H_jj.
        mean_square = (noise + np.diag(hessian)) / n_rows**2
        return np.diag((self.regulariser + np.sqrt(mean_square)) ** -0.5)

    def filled(self, posterior: AbstractPosterior) -> dict[str, Any]:
        return {"n_rows": jnp.asarray(posterior.n_rows, posterior.dtype)}

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> MeanSquareState:
        # A start at V = 0 would make the first steps ten times too large.
        mean_square = (evaluate(position, None).gradient / self.n_rows) ** 2
        return MeanSquareState(position, mean_square)

    def noise(self, key: PRNGKeyArray, steps: int, like: Vector) -> tuple[Array, Array]:
        normal_key, sign_key = jax.random.split(key)
        normal = standard_normal(normal_key, (steps, *like.shape), like.dtype)
        bits = random_words(sign_key, (steps, *like.shape))[..., 0] >> 31
        return normal, 1 - 2 * bits.astype(like.dtype)

    def merged_noise(
        self, first: tuple[Array, Array], second: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        return merged_normal(first[0], second[0]), first[1]

    def step(
        self,
        state: MeanSquareState,
        evaluate: Evaluate,
        step_size: Scalar,
        noise: tuple[Array, Array],
    ) -> DynamicsStep:
        normal, signs = noise

        def gradient_at(position: Vector) -> tuple[Vector, Estimate]:
            estimate = evaluate(position, None)
            return estimate.gradient, estimate

        if self.gamma:
            gradient, derivative, estimate = jax.jvp(
                gradient_at, (state.position,), (signs,), has_aux=True
            )
        else:
            (gradient, estimate), derivative = gradient_at(state.position), jnp.zeros_like(normal)
        mean = gradient / self.n_rows
        mean_square = self.decay * state.mean_square + (1 - self.decay) * mean**2
        root = jnp.sqrt(mean_square)
        scale = 1 / (self.regulariser + root)
        slope = (
            (1 - self.decay)
            * mean
            * (signs * derivative / self.n_rows)
            / jnp.maximum(root, jnp.finfo(root.dtype).tiny)
        )
        drift = step_size / 2 * (-(scale**2) * slope - scale * gradient)
        injected = reduced_noise(normal, _preconditioned(estimate.noise, scale), step_size / 4)
        position = state.position + drift + jnp.sqrt(step_size * scale) * injected.noise
        moved = MeanSquareState(position, mean_square)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)


def _preconditioned(covariance: Covariance | None, scale: Vector) -> Covariance | None:
    """√G C √G, the covariance of the gradient noise in units of the step's own noise."""
    if covariance is None or covariance.ndim == 1:
        return None if covariance is None else scale * covariance
    root = jnp.sqrt(scale)
    return root[:, None] * covariance * root
