"""The geometric Langevin algorithm, GLA (Bou-Rabee and Owhadi, 2010): Verlet and exact friction.

    BOB  ρ ← cρ − (1 + c)(ε/4) Cᵀ∇f̂(θ) + √(1 − c²) ξ,   c = exp(−γε/2),   ξ ~ N(0, I)
    A    θ ← θ + (ε/2) Cρ

GLA alternates a Verlet step BAB with the exact solution O of friction and noise. Here a step begins
before the last half kick B of the Verlet step: the two half kicks at the same position share one
gradient. The positions are those of GLA. The bias is of order ε². Verlet steps keep the quadratic
form ‖ρ‖² + λ(1 − ε²λ/16)θ² on a Gaussian of curvature λ, and O keeps ρ ~ N(0, I). The stationary
variance with exact gradients is therefore

    1 / (λ (1 − ε²λ/16)),   for ε < 4/√λ.

The gradient and the noise enter ρ in the same substep, and the new position is a function of the
new momentum. The density of a move given a gradient exists, which exponential weights need
(`Transition`; li-2021, footnote 2). Gradient noise of covariance V is corrected by
ξ ~ N(0, I − (1 + c)²/(1 − c²) (ε²/16) V); the move then has the covariance of an exact one.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..core.errors import check_number
from ..core.linear_maps import AbstractLinearMap
from ..correction import reduced_noise
from .base import (
    AbstractDiffusion,
    Curvature,
    DynamicsChoice,
    DynamicsContext,
    DynamicsStep,
    Evaluate,
    Suggestion,
)
from .momentum import (
    MomentumState,
    damped_suggestion,
    damped_transition,
    damping,
    with_momentum,
)


class GeometricLangevinDynamics(AbstractDiffusion):
    """GLA dynamics prepared for one posterior.

    **Arguments:**

    - `geometry`: the linear map C of the coordinates.
    - `friction`: the friction γ.

    >>> import jax.numpy as jnp, tallmc
    >>> from tallmc.core.linear_maps import IdentityMap
    >>> tallmc.dynamics.GeometricLangevinDynamics(IdentityMap(), jnp.ones(())).evaluates_at_start
    False
    """

    geometry: AbstractLinearMap
    friction: Float[Array, ""]
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
        h = step_size / 2
        friction = damping(self.friction, h)
        kick = (1 + friction.decay) * h / 2
        estimate = evaluate(
            state.position, damped_transition(state.momentum, friction, kick, self.geometry)
        )
        injected = reduced_noise(noise, estimate.noise, friction.share)
        kicked = friction.decay * state.momentum - kick * self.geometry.pull(estimate.gradient)
        momentum = kicked + friction.sd * injected.noise
        position = state.position + self.geometry.push(h * momentum)
        moved = MomentumState(position, momentum)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)


@dataclasses.dataclass(frozen=True)
class GeometricLangevin(DynamicsChoice):
    """Underdamped Langevin dynamics by the geometric Langevin algorithm, GLA.

    **Arguments:**

    - `friction`: the friction γ.

    **Raises:** `InvalidInput` if `friction` is not positive.

    >>> import tallmc
    >>> tallmc.dynamics.GeometricLangevin(friction=2.0)
    GeometricLangevin(friction=2.0)
    """

    friction: float
    needs = AnchorLevel.NOTHING
    exact_only = False
    takes_geometry = True
    corrects_through = ("noise",)
    has_transition = True

    def __post_init__(self) -> None:
        check_number("friction", self.friction, 0, low_open=True)

    def suggest(self, curvature: Curvature) -> Suggestion:
        return damped_suggestion(curvature)

    def prepare(self, context: DynamicsContext) -> GeometricLangevinDynamics:
        return GeometricLangevinDynamics(
            context.geometry, jnp.asarray(self.friction, context.posterior.dtype)
        )
