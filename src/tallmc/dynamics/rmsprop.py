"""Preconditioned Langevin dynamics, pSGLD (Li, Chen, Carlson and Carin, 2016).

    V ← αV + (1 − α) (∇f̂/N)²,   G = 1/(λ + √V)
    θ' = θ + (ε/2) (Γ − G ∇f̂(θ)) + √(εG) η,   Γ_j = ∂G_j/∂θ_j

Each parameter has its own step size, set by the size of its gradients. Γ keeps the target of the
diffusion right while G changes with θ. Without Γ (`gamma=False`, as in most code) there is a bias
that no step size removes. Γ needs the diagonal of the Hessian, which is estimated without bias from
the same rows by one directional derivative along random signs.

Γ covers the newest term of V only, although the older terms depend on the path of the chain too.
With α = 0 the target is right as ε → 0. With α near 1 the target is nearly right if the chain
crosses the posterior in far fewer than 1/(1 − α) steps, so that V is almost constant; for a slower
chain the error is as large as without Γ. There is also a bias of order ε, as in Langevin dynamics.
Gradient noise of covariance C is corrected by η ~ N(0, I − (ε/4) √G C √G).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..core.errors import InvalidInput, check_number
from ..core.random import random_words, standard_normal
from ..correction import reduced_noise
from ..correction.base import Covariance
from ..subsample.selection import Estimate
from .base import (
    AbstractDynamics,
    AbstractDynamicsState,
    Curvature,
    DynamicsChoice,
    DynamicsContext,
    DynamicsStep,
    Evaluate,
    Suggestion,
    merged_normal,
    overdamped_suggestion,
)


class RMSpropState(AbstractDynamicsState):
    """Position θ and running mean V of the squared gradients."""

    position: Float[Array, " d"]
    mean_square: Float[Array, " d"]
    """V."""


class RMSpropDynamics(AbstractDynamics):
    """pSGLD prepared for one posterior.

    **Arguments:**

    - `n_rows`: N.
    - `decay`: α.
    - `regulariser`: λ.
    - `gamma`: whether the drift includes Γ.

    >>> import tallmc
    >>> tallmc.dynamics.RMSpropDynamics.evaluates_at_start
    True
    """

    n_rows: Float[Array, ""]
    decay: Float[Array, ""]
    regulariser: Float[Array, ""]
    gamma: bool = eqx.field(static=True)
    evaluates_at_start = True

    def init(
        self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate
    ) -> RMSpropState:
        # A start at V = 0 would make the first steps ten times too large.
        return RMSpropState(position, (evaluate(position, None).gradient / self.n_rows) ** 2)

    def noise(self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]) -> tuple[Array, Array]:
        normal_key, sign_key = jax.random.split(key)
        normal = standard_normal(normal_key, (steps, *like.shape), like.dtype)
        signs = 1 - 2 * (random_words(sign_key, (steps, *like.shape))[..., 0] >> 31).astype(
            like.dtype
        )
        return normal, signs

    def finer(self) -> RMSpropDynamics:
        return self

    def merged_noise(
        self, first: tuple[Array, Array], second: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        return merged_normal(first[0], second[0]), first[1]

    def step(
        self,
        state: RMSpropState,
        evaluate: Evaluate,
        step_size: Float[Array, ""],
        noise: tuple[Array, Array],
    ) -> DynamicsStep:
        normal, signs = noise

        def gradient_at(position: Float[Array, " d"]) -> tuple[Float[Array, " d"], Estimate]:
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
        moved = RMSpropState(position, mean_square)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)


def _preconditioned(covariance: Covariance | None, scale: Float[Array, " d"]) -> Covariance | None:
    """√G C √G, the covariance of the gradient noise in units of the step's own noise."""
    if covariance is None or covariance.ndim == 1:
        return None if covariance is None else scale * covariance
    root = jnp.sqrt(scale)
    return root[:, None] * covariance * root


@dataclasses.dataclass(frozen=True)
class RMSprop(DynamicsChoice):
    """Preconditioned Langevin dynamics, pSGLD.

    **Arguments:**

    - `decay`: α, the decay of the running mean of squared gradients.
    - `regulariser`: λ.
    - `gamma`: whether the drift includes Γ.

    **Raises:** `InvalidInput` if `decay` is not in [0, 1], `regulariser` is not positive, or
    `gamma` is not a bool.

    >>> import tallmc
    >>> tallmc.dynamics.RMSprop(decay=0.9)
    RMSprop(decay=0.9, regulariser=1e-05, gamma=True)
    """

    decay: float = 0.99
    regulariser: float = 1e-5
    gamma: bool = True
    needs = AnchorLevel.NOTHING
    exact_only = False
    takes_geometry = False
    corrects_through = ("noise",)
    has_transition = False
    unseen_by_pairs = "the bias of a preconditioner that follows the path of the chain"

    def __post_init__(self) -> None:
        check_number("decay", self.decay, 0, 1)
        check_number("regulariser", self.regulariser, 0, low_open=True)
        if not isinstance(self.gamma, bool):
            raise InvalidInput("gamma", "be True or False", self.gamma)

    def suggest(self, curvature: Curvature) -> Suggestion:
        return overdamped_suggestion(curvature)

    def own_coordinates(self, hessian: np.ndarray, noise: np.ndarray, n_rows: int) -> np.ndarray:
        # At a draw from the posterior the exact gradient has variance H_jj.
        mean_square = (noise + np.diag(hessian)) / n_rows**2
        return np.diag((self.regulariser + np.sqrt(mean_square)) ** -0.5)

    def prepare(self, context: DynamicsContext) -> RMSpropDynamics:
        def in_dtype(value: Any) -> Array:
            return jnp.asarray(value, context.posterior.dtype)

        return RMSpropDynamics(
            in_dtype(context.posterior.n_rows),
            in_dtype(self.decay),
            in_dtype(self.regulariser),
            self.gamma,
        )
