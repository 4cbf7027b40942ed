"""Preconditioned Langevin dynamics, pSGLD (Li, Chen, Carlson and Carin, 2016): a step a parameter, by the size of its gradients.
size.

    V ← αV + (1 − α) (∇f̂/N)²,   G = 1/(λ + √V)
    θ' = θ + (ε/2) (Γ − G ∇f̂(θ)) + √(εG) η,   Γ_j = ∂G_j/∂θ_j

Γ keeps the diffusion's target right while G moves with θ; leaving it out (`gamma=False`, as most code does) is a bias that no
step size removes. Γ takes the diagonal of the Hessian, estimated without bias from the same rows by one directional derivative
along random signs. It knows of the newest term of V only: the past of V depends on where the chain has been, too. With α = 0
the target is right as ε → 0; with α near 1 it is nearly right while the chain crosses the posterior in far fewer than 1/(1 − α)
steps, so that V is all but constant, and off by as much as without Γ where the chain is slower than that. Biased besides of
order ε, like Langevin dynamics.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Needs
from .._errors import InvalidInput, check_number
from .._random import random_words, standard_normal
from ..subsample.selection import Estimate
from .base import AbstractDynamics, AbstractDynamicsState, DynamicsChoice, Evaluate, Moved, Surroundings


class RMSpropState(AbstractDynamicsState):
    position: Float[Array, " d"]
    mean_square: Float[Array, " d"]
    """V."""


class RMSpropDynamics(AbstractDynamics):
    n_rows: Float[Array, ""]
    decay: Float[Array, ""]
    regulariser: Float[Array, ""]
    gamma: bool = eqx.field(static=True)
    evaluates_at_start = True

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> RMSpropState:
        # From zero the first steps would be ten times too large.
        return RMSpropState(position, (evaluate(position, None).gradient / self.n_rows) ** 2)

    def noise(self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]) -> tuple[Array, Array]:
        normal_key, sign_key = jax.random.split(key)
        normal = standard_normal(normal_key, (steps, *like.shape), like.dtype)
        signs = 1 - 2 * (random_words(sign_key, (steps, *like.shape))[..., 0] >> 31).astype(like.dtype)
        return normal, signs

    def step(self, state: RMSpropState, evaluate: Evaluate, step_size: Float[Array, ""], noise: tuple[Array, Array]) -> Moved:
        normal, signs = noise

        def gradient_at(position: Float[Array, " d"]) -> tuple[Float[Array, " d"], Estimate]:
            estimate = evaluate(position, None)
            return estimate.gradient, estimate

        if self.gamma:
            gradient, along, estimate = jax.jvp(gradient_at, (state.position,), (signs,), has_aux=True)
        else:
            (gradient, estimate), along = gradient_at(state.position), jnp.zeros_like(normal)
        mean = gradient / self.n_rows
        mean_square = self.decay * state.mean_square + (1 - self.decay) * mean**2
        root = jnp.sqrt(mean_square)
        scale = 1 / (self.regulariser + root)
        slope = (1 - self.decay) * mean * (signs * along / self.n_rows) / jnp.maximum(root, jnp.finfo(root.dtype).tiny)
        drift = step_size / 2 * (-(scale**2) * slope - scale * gradient)
        position = state.position + drift + jnp.sqrt(step_size * scale) * normal
        return Moved(RMSpropState(position, mean_square), estimate, {})


@dataclasses.dataclass(frozen=True)
class RMSprop(DynamicsChoice):
    """Choose pSGLD: `decay` is α, `regulariser` λ; `gamma=False` leaves Γ out."""

    decay: float = 0.99
    regulariser: float = 1e-5
    gamma: bool = True
    needs = Needs.NOTHING
    exact_only = False
    takes_geometry = False
    corrects_through = ()
    has_transition = False

    def __post_init__(self) -> None:
        check_number("decay", self.decay, 0, 1)
        check_number("regulariser", self.regulariser, 0, low_open=True)
        if not isinstance(self.gamma, bool):
            raise InvalidInput("gamma", "be True or False", self.gamma)

    def prepare(self, around: Surroundings) -> RMSpropDynamics:
        def device(value: Any) -> Array:
            return jnp.asarray(value, around.posterior.dtype)

        return RMSpropDynamics(device(around.posterior.n_rows), device(self.decay), device(self.regulariser), self.gamma)
