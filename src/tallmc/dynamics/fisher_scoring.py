"""Stochastic gradient Fisher scoring, SGFS (Ahn, Korattikara and Welling, 2012, Algorithm 1).

    Î ← Î + (V − Î)/min(t, m),   V the covariance of the ∇f_i within the batch of step t
    θ' = θ − P (∇f̂(θ) − (2/√ε) B^½ η),   P = 2 [γNÎ + (4/ε)B]⁻¹,   γ = (n + N)/n,   η ~ N(0, I)

Î estimates the Fisher information of one row on the run. B = (CCᵀ)⁻¹ is any positive definite
matrix, here that of the geometry: B = I with `Identity()`. As ε → 0 the step is that of Langevin
dynamics, θ − (ε/2)B⁻¹∇f̂ + √ε B^(−½)η. As ε → ∞ no noise is injected: the noise of the gradient
alone drives the chain.

Bias. On a Gaussian with Hessian H, fixed Î and gradient noise V the stationary covariance S solves
PHS + SHP − PHSHP = P(V + (4/ε)B)P. If NÎ = H and V = (N/n)NÎ, then S = H⁻¹ at *any* ε: neither
discretisation nor gradient noise adds a bias. These are the premises of the paper's Bayesian
central limit theorem. What they neglect is the bias, which grows with ε and is of order ε as ε → 0:
- The Hessian of f differs from NÎ: by the curvature of the prior, and by the whole matrix if the
  model is wrong, because the covariance of the ∇f_i is then not their mean Hessian.
- A posterior that is not Gaussian: at large ε the draws are those of a Gaussian near the mode.
- With "diagonal", NÎ without its correlations. The chain is stable at any ε if PH < 2, which holds
  with "dense" and NÎ = H, but with "diagonal" only if H < γ diag(H) + (4/ε)B.
- An Î that remembers the burn-in. Gradients far from the mode vary more, and with the paper's
  average, m = ∞, their share in Î falls as 1/t only. On a linear regression with 200 rows, n = 20
  and ε = 0.05, chains from zero had 0.42 of the posterior's sds in the steps from 1,000 to 6,000.
  With m = 100 they had 1.03 to 1.05. Chains from the mode had 1.03 to 1.06 with any m. A finite m
  makes Î follow the path of the chain, and "dense" needs nm ≫ d.

V is unbiased for rows drawn uniformly with replacement, and the ∇f_i are those of the simple
estimator. "dense" costs O(nd² + d³) per step, "diagonal" O(nd). Both need the gradient of each row.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..core.errors import InvalidInput, check_int
from ..core.linear_maps import AbstractLinearMap
from ..correction.base import Covariance, Shape, second_moment
from .base import (
    AbstractDiffusion,
    AbstractDynamicsState,
    Curvature,
    DynamicsChoice,
    DynamicsContext,
    DynamicsStep,
    Evaluate,
    Suggestion,
    overdamped_suggestion,
)

_ALL_BATCHES = 2**31 - 1


class FisherState(AbstractDynamicsState):
    """Position θ and the running average of the Fisher information."""

    position: Float[Array, " d"]
    fisher: Covariance
    """CᵀNÎC, diagonal or full: the Fisher information of all rows in the coordinates of C."""
    count: Int[Array, ""]
    """Batches in the average, at most `memory`."""


class FisherScoringDynamics(AbstractDiffusion):
    """SGFS prepared for one posterior.

    **Arguments:**

    - `geometry`: the linear map C of the coordinates; B = (CCᵀ)⁻¹.
    - `n_rows`: N.
    - `memory`: m, the largest number of batches in the average.
    - `shape`: "dense" or "diagonal", the form of Î.

    >>> import tallmc
    >>> tallmc.dynamics.FisherScoringDynamics.evaluates_at_start
    False
    """

    geometry: AbstractLinearMap
    n_rows: Float[Array, ""]
    memory: Int[Array, ""]
    shape: Shape = eqx.field(static=True)
    evaluates_at_start = False

    def init(
        self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate
    ) -> FisherState:
        d = position.shape[0]
        nothing = jnp.zeros(d if self.shape == "diagonal" else (d, d), position.dtype)
        return FisherState(position, nothing, jnp.int32(0))

    def step(
        self,
        state: FisherState,
        evaluate: Evaluate,
        step_size: Float[Array, ""],
        noise: Float[Array, " d"],
    ) -> DynamicsStep:
        estimate = evaluate(state.position, None)
        assert estimate.spread is not None, "Fisher scoring requires the spread of its batch"
        drawn_share = estimate.n_rows / self.n_rows
        # The covariance of the estimate is (N/n)NÎ.
        newest = drawn_share * second_moment(self.geometry.pull(estimate.spread), self.shape)
        count = jnp.minimum(state.count, self.memory - 1) + 1
        fisher = state.fisher + (newest - state.fisher) / count
        force = 2 / jnp.sqrt(step_size) * noise - self.geometry.pull(estimate.gradient)
        move = 2 * _solve((1 + 1 / drawn_share) * fisher, 4 / step_size, force)
        position = state.position + self.geometry.push(move)
        return DynamicsStep(FisherState(position, fisher, count), estimate, {})


def _solve(
    information: Covariance, added: Float[Array, ""], force: Float[Array, " d"]
) -> Float[Array, " d"]:
    """(J + aI)⁻¹ v, with J = `information` and a = `added`."""
    if information.ndim == 1:
        return force / (information + added)
    matrix = information + added * jnp.eye(force.shape[0], dtype=force.dtype)
    return cho_solve(cho_factor(matrix), force)


@dataclasses.dataclass(frozen=True)
class FisherScoring(DynamicsChoice):
    """Stochastic gradient Fisher scoring, for `Simple()` gradients and `Uniform()` draws.

    **Arguments:**

    - `shape`: "dense" estimates the Fisher information as a d×d matrix, "diagonal" its diagonal.
    - `memory`: about how many of the last batches the estimate averages over. None averages over
      all batches, as in the paper; start such chains near the mode.

    **Raises:** `InvalidInput` if `shape` is neither, or if `memory` is not an int of at least 1.

    >>> import tallmc
    >>> tallmc.dynamics.FisherScoring("diagonal")
    FisherScoring(shape='diagonal', memory=100)
    """

    shape: Shape = "dense"
    memory: int | None = 100
    needs = AnchorLevel.NOTHING
    exact_only = False
    takes_geometry = True
    corrects_through = ()
    has_transition = False
    reads_fisher_information = True

    def __post_init__(self) -> None:
        if self.shape not in ("dense", "diagonal"):
            raise InvalidInput("shape", 'be "dense" or "diagonal"', self.shape)
        if self.memory is not None:
            check_int("memory", self.memory, 1, _ALL_BATCHES)

    def suggest(self, curvature: Curvature) -> Suggestion:
        return overdamped_suggestion(curvature)

    def prepare(self, context: DynamicsContext) -> FisherScoringDynamics:
        n_rows = jnp.asarray(context.posterior.n_rows, context.posterior.dtype)
        memory = jnp.int32(_ALL_BATCHES if self.memory is None else self.memory)
        return FisherScoringDynamics(context.geometry, n_rows, memory, self.shape)
