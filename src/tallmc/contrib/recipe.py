"""The complete recipe (Ma, Chen and Fox, 2015): any diffusion with a given stationary law.

    dζ = ½ b dt + √D dB,   b = −(D + Q)∇H + Γ,   Γ_i = Σ_j ∂(D + Q)_ij/∂ζ_j
    ζ' = ζ + (ε/2) [Γ − (D + Q)∇Ĥ] + √ε Z,   Z ~ N(0, D)

These are nemeth-2021, eqs. 9 and 10, and eq. 11 with the sign of Γ corrected. ζ = (θ, auxiliary
variables) and H(ζ) = f(θ) + E(ζ), where E is an energy given by the user. D(ζ) is positive
semi-definite, Q(ζ) skew-symmetric. Gradient noise of covariance V adds (D + Q) V (D + Q)ᵀ ε/4 to D,
and the noise correction subtracts it: Z ~ N(0, D − (ε/4) (D + Q) V (D + Q)ᵀ) (nemeth-2021, section
3). Automatic differentiation gives Γ. `Langevin`, `RiemannianLangevin`, `SGHMC`, `MatrixFriction`,
`RiemannianHamiltonian` and `NoseHoover` are fast forms of the best known recipes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.arrays import Scalar, Vector, dot
from .._core.errors import InvalidInput, check_int
from .._core.random import standard_normal
from ..dynamics.dynamics import (
    AbstractDynamics,
    AbstractDynamicsState,
    Curvature,
    DynamicsStep,
    Evaluate,
    Suggestion,
    diffusion_noise,
    transformed,
)
from ..models.posterior import AbstractPosterior

MatrixOf = Callable[[Float[Array, " k"]], Float[Array, "k k"]]
EnergyOf = Callable[[Float[Array, " k"]], Scalar]

_CHECKED_POINTS = 5


class RecipeState(AbstractDynamicsState):
    """ζ, as position θ and auxiliary variables."""

    position: Vector
    auxiliary: Float[Array, " m"]


def no_energy(zeta: Float[Array, " k"]) -> Float[Array, ""]:
    """E = 0: no auxiliary variables, or auxiliary variables with a flat law."""
    return jnp.zeros((), zeta.dtype)


class Recipe(AbstractDynamics):
    """The diffusion with given D(ζ), Q(ζ) and H(ζ) = f(θ) + E(ζ).

    ζ is the flat position followed by the auxiliary variables. The functions take the vector ζ and
    use `jax.numpy`. D and Q are checked at several points before the first step.

    **Arguments:**

    - `diffusion`: D(ζ), positive semi-definite.
    - `curl`: Q(ζ), skew-symmetric.
    - `energy`: E(ζ), a scalar.
    - `auxiliary`: the number of auxiliary variables.
    - `start`: the start of the auxiliary variables; zeros by default.
    """

    paper = "Ma, Chen and Fox (2015)"
    bias = (
        "The diffusion leaves exp(−H) invariant. The bias of the Euler steps at fixed ε is of "
        "order ε."
    )
    cost = "A step costs O(k³), where k is the length of ζ."
    takes_geometry = False

    diffusion: MatrixOf
    curl: MatrixOf
    energy: EnergyOf = eqx.field(default=no_energy)
    auxiliary: int = eqx.field(default=0, static=True)
    start: Any = None

    def __post_init__(self) -> None:
        check_int("auxiliary", self.auxiliary, 0)
        for name in ("diffusion", "curl", "energy"):
            if not callable(getattr(self, name)):
                raise InvalidInput(name, "be a function of the state", getattr(self, name))

    def filled(self, posterior: AbstractPosterior) -> dict[str, Any]:
        position = posterior.init
        given = np.zeros(self.auxiliary) if self.start is None else self.start
        start = jnp.asarray(given, position.dtype)
        if start.shape != (self.auxiliary,):
            rule = f"have one value per auxiliary variable ({self.auxiliary})"
            raise InvalidInput("start", rule, f"shape {start.shape}")
        self._check(np.concatenate([np.asarray(position), np.asarray(start)]), position.dtype)
        return {"start": start}

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> RecipeState:
        return RecipeState(position, self.start)

    def noise(self, key: PRNGKeyArray, steps: int, like: Vector) -> Float[Array, "steps k"]:
        return standard_normal(key, (steps, like.shape[0] + self.auxiliary), like.dtype)

    def step(
        self, state: RecipeState, evaluate: Evaluate, step_size: Scalar, noise: Float[Array, " k"]
    ) -> DynamicsStep:
        estimate = evaluate(state.position, None)
        zeta, d = jnp.concatenate([state.position, state.auxiliary]), state.position.shape[0]
        slope = jax.grad(self.energy)(zeta).at[:d].add(estimate.gradient)
        diffusion = self.diffusion(zeta)
        force = diffusion + self.curl(zeta)
        drift = self.gamma(zeta) - dot(force, slope)
        kicks = transformed(estimate.noise, force[:, :d].T)
        taken = None if kicks is None else step_size / 4 * kicks
        injected = diffusion_noise(noise, diffusion, taken)
        zeta = zeta + step_size / 2 * drift + jnp.sqrt(step_size) * injected.noise
        moved = RecipeState(zeta[:d], zeta[d:])
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)

    def gamma(self, zeta: Float[Array, " k"]) -> Float[Array, " k"]:
        """Γ_i = Σ_j ∂(D + Q)_ij/∂ζ_j."""
        return jnp.einsum("ijj->i", jax.jacfwd(lambda at: self.diffusion(at) + self.curl(at))(zeta))

    def suggest(self, curvature: Curvature) -> Suggestion:
        rule = "be given with a Recipe, whose stability limit is not known"
        raise InvalidInput("step_size", rule, None)

    def _check(self, start: np.ndarray, dtype: Any) -> None:
        """Raise unless D is positive semi-definite and Q skew-symmetric at and around `start`."""
        rng, k = np.random.default_rng(0), len(start)
        slack = float(np.sqrt(np.finfo(dtype).eps))
        for point in [start, *(start + rng.normal(size=k) for _ in range(_CHECKED_POINTS - 1))]:
            zeta = jnp.asarray(point, dtype)
            D, Q = (np.asarray(matrix(zeta), np.float64) for matrix in (self.diffusion, self.curl))
            for name, matrix in (("diffusion", D), ("curl", Q)):
                if matrix.shape != (k, k) or not np.isfinite(matrix).all():
                    found = f"shape {matrix.shape} at {point.round(3)}"
                    raise InvalidInput(name, f"return a finite {k}×{k} matrix", found)
            scale = max(np.abs(D).max(), np.abs(Q).max(), np.finfo(dtype).tiny)
            if (
                not np.allclose(D, D.T, atol=slack * scale)
                or np.linalg.eigvalsh((D + D.T) / 2)[0] < -slack * scale
            ):
                raise InvalidInput("diffusion", "be symmetric and positive semi-definite", D)
            if not np.allclose(Q, -Q.T, atol=slack * scale):
                raise InvalidInput("curl", "be skew-symmetric", Q)
        if jnp.shape(self.energy(jnp.asarray(start, dtype))) != ():
            raise InvalidInput("energy", "return a scalar", self.energy(jnp.asarray(start, dtype)))
