"""The complete recipe (Ma, Chen and Fox, 2015): every diffusion with a given stationary law, from two matrices.

    dζ = ½ b dt + √D dB,   b = −(D + Q)∇H + Γ,   Γ_i = Σ_j ∂(D + Q)_ij/∂ζ_j                            nemeth-2021, eqs. 9, 10
    ζ' = ζ + (ε/2) [Γ − (D + Q)∇Ĥ] + √ε Z,   Z ~ N(0, D)                                         eq. 11, its sign of Γ corrected

ζ = (θ, auxiliary variables), H(ζ) = f(θ) + E(ζ) with E your energy of the rest, D(ζ) positive semi-definite, Q(ζ)
skew-symmetric. The diffusion leaves exp(−H) invariant; the Euler steps are biased at any fixed ε, of order ε, and gradient noise
adds to D what (D + Q) V (D + Q)ᵀ ε/4 says. Γ comes by automatic differentiation. O(k³) a step, k the length of ζ: the named
dynamics are the fast forms of its best known instances, and `table_1` has these as recipes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._anchor import Needs
from .._errors import InvalidInput, check_int
from .._random import standard_normal
from .._rows import dot
from .base import AbstractDynamics, AbstractDynamicsState, DynamicsChoice, Evaluate, Moved, Surroundings

MatrixOf = Callable[[Float[Array, " k"]], Float[Array, "k k"]]
EnergyOf = Callable[[Float[Array, " k"]], Float[Array, ""]]

_CHECKED_POINTS = 5


class RecipeState(AbstractDynamicsState):
    position: Float[Array, " d"]
    auxiliary: Float[Array, " m"]


class RecipeDynamics(AbstractDynamics):
    diffusion: MatrixOf
    curl: MatrixOf
    energy: EnergyOf
    auxiliary: Float[Array, " m"]
    """Where the auxiliary variables start."""
    evaluates_at_start = False

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> RecipeState:
        return RecipeState(position, self.auxiliary)

    def noise(self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]) -> Float[Array, "steps k"]:
        return standard_normal(key, (steps, like.shape[0] + self.auxiliary.shape[0]), like.dtype)

    def step(self, state: RecipeState, evaluate: Evaluate, step_size: Float[Array, ""], noise: Float[Array, " k"]) -> Moved:
        estimate = evaluate(state.position, None)
        zeta, d = jnp.concatenate([state.position, state.auxiliary]), state.position.shape[0]
        slope = jax.grad(self.energy)(zeta).at[:d].add(estimate.gradient)
        drift = self.gamma(zeta) - dot(self.diffusion(zeta) + self.curl(zeta), slope)
        zeta = zeta + step_size / 2 * drift + jnp.sqrt(step_size) * dot(_root(self.diffusion(zeta)), noise)
        return Moved(RecipeState(zeta[:d], zeta[d:]), estimate, {})

    def gamma(self, zeta: Float[Array, " k"]) -> Float[Array, " k"]:
        """Γ_i = Σ_j ∂(D + Q)_ij/∂ζ_j."""
        return jnp.einsum("ijj->i", jax.jacfwd(lambda at: self.diffusion(at) + self.curl(at))(zeta))


def _root(matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """The symmetric square root of a positive semi-definite matrix."""
    values, axes = jnp.linalg.eigh(matrix)
    return dot(axes * jnp.sqrt(jnp.maximum(values, 0)), axes.T)


def no_energy(zeta: Float[Array, " k"]) -> Float[Array, ""]:
    """H = f: no auxiliary variables, or flat ones."""
    return jnp.zeros((), zeta.dtype)


@dataclasses.dataclass(frozen=True)
class Recipe(DynamicsChoice):
    """Choose the diffusion with this D(ζ), Q(ζ) and H(ζ) = f(θ) + `energy`(ζ); ζ is the flat position, then `auxiliary` values.

    The functions take the vector ζ and are written with `jax.numpy`. D and Q are checked at several points before the first step.

    >>> import jax.numpy as jnp
    >>> langevin = Recipe(diffusion=lambda zeta: jnp.eye(2), curl=lambda zeta: jnp.zeros((2, 2)))
    """

    diffusion: MatrixOf
    curl: MatrixOf
    energy: EnergyOf = no_energy
    auxiliary: int = 0
    start: Any = None
    """Where the auxiliary variables start; zeros unless given."""
    needs = Needs.NOTHING
    exact_only = False
    takes_geometry = False
    corrects_through = ()
    has_transition = False

    def __post_init__(self) -> None:
        check_int("auxiliary", self.auxiliary, 0)
        for name in ("diffusion", "curl", "energy"):
            if not callable(getattr(self, name)):
                raise InvalidInput(name, "be a function of the state", getattr(self, name))

    def prepare(self, around: Surroundings) -> RecipeDynamics:
        position = around.posterior.init
        start = jnp.zeros(self.auxiliary, position.dtype) if self.start is None else jnp.asarray(self.start, position.dtype)
        if start.shape != (self.auxiliary,):
            raise InvalidInput("start", f"have one value an auxiliary variable ({self.auxiliary})", f"shape {start.shape}")
        self._check(np.concatenate([np.asarray(position), np.asarray(start)]), position.dtype)
        return RecipeDynamics(self.diffusion, self.curl, self.energy, start)

    def _check(self, start: np.ndarray, dtype: Any) -> None:
        """Raise unless D is positive semi-definite and Q skew-symmetric at the start and around it."""
        rng, k = np.random.default_rng(0), len(start)
        slack = float(np.sqrt(np.finfo(dtype).eps))
        for point in [start, *(start + rng.normal(size=k) for _ in range(_CHECKED_POINTS - 1))]:
            zeta = jnp.asarray(point, dtype)
            D, Q = (np.asarray(of(zeta), np.float64) for of in (self.diffusion, self.curl))
            for name, matrix in (("diffusion", D), ("curl", Q)):
                if matrix.shape != (k, k) or not np.isfinite(matrix).all():
                    raise InvalidInput(name, f"return a finite {k}×{k} matrix", f"shape {matrix.shape} at {point.round(3)}")
            size = max(np.abs(D).max(), np.abs(Q).max(), np.finfo(dtype).tiny)
            if not np.allclose(D, D.T, atol=slack * size) or np.linalg.eigvalsh((D + D.T) / 2)[0] < -slack * size:
                raise InvalidInput("diffusion", "be symmetric and positive semi-definite", D)
            if not np.allclose(Q, -Q.T, atol=slack * size):
                raise InvalidInput("curl", "be skew-symmetric", Q)
        if jnp.shape(self.energy(jnp.asarray(start, dtype))) != ():
            raise InvalidInput("energy", "return a scalar", self.energy(jnp.asarray(start, dtype)))
