"""Stochastic gradient Fisher scoring, SGFS (Ahn, Korattikara and Welling, 2012, Algorithm 1).

    Î ← Î + (V − Î)/min(t, m),   V the covariance of the ∇f_i within the batch of step t
    θ' = θ − P (∇f̂(θ) − (2/√ε) B^½ η),   P = 2 [γNÎ + (4/ε)B]⁻¹,   γ = (n + N)/n,   η ~ N(0, I)

Î estimates the Fisher information of one row on the run. B = (CCᵀ)⁻¹ is any positive definite
matrix, here that of the geometry: B = I with `Identity()`. As ε → 0 the step is that of Langevin
dynamics, θ − (ε/2)B⁻¹∇f̂ + √ε B^(−½)η. As ε → ∞ no noise is injected: the noise of the gradient
alone drives the chain.

On a Gaussian with Hessian H, fixed Î and gradient noise V the stationary covariance S solves
PHS + SHP − PHSHP = P(V + (4/ε)B)P. If NÎ = H and V = (N/n)NÎ, then S = H⁻¹ at *any* ε. These are
the premises of the paper's Bayesian central limit theorem. What they neglect:
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
estimator.
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Int, PRNGKeyArray

from .._core.arrays import Scalar, Vector
from .._core.errors import InvalidInput, check_int
from ..correction import Covariance, Shape, second_moment
from ..models.posterior import AbstractPosterior
from .dynamics import AbstractDynamics, AbstractDynamicsState, DynamicsStep, Evaluate

_ALL_BATCHES = 2**31 - 1


class FisherState(AbstractDynamicsState):
    """Position θ and the running average of the Fisher information."""

    position: Vector
    fisher: Covariance
    """CᵀNÎC, diagonal or full: the Fisher information of all rows in the coordinates of C."""
    count: Int[Array, ""]  # Batches in the average, at most `window`


class FisherScoring(AbstractDynamics):
    """Stochastic gradient Fisher scoring, for `Simple()` gradients and `Uniform()` draws.

    **Arguments:**

    - `shape`: "dense" estimates the Fisher information as a d×d matrix, "diagonal" its diagonal.
    - `window`: about how many of the last batches the estimate averages over. None averages over
      all batches, as in the paper; start such chains near the mode.
    """

    paper = "Ahn, Korattikara and Welling (2012)"
    bias = (
        "No bias on a Gaussian whose Hessian is the Fisher information, at any ε: neither "
        "discretisation nor gradient noise adds one. Otherwise the bias grows with ε and is of "
        "order ε as ε → 0: by the prior, a wrong model, a posterior that is not Gaussian, or, "
        'with "diagonal", correlations.'
    )
    cost = (
        '"dense" costs O(nd² + d³) per step, "diagonal" O(nd). Both need the gradient of each row.'
    )
    corrects_through = ()
    reads_fisher_information = True

    shape: Shape = eqx.field(default="dense", static=True)
    window: int | None = 100
    n_rows: float = eqx.field(default=math.nan, repr=False, kw_only=True)  # N

    def __post_init__(self) -> None:
        if self.shape not in ("dense", "diagonal"):
            raise InvalidInput("shape", 'be "dense" or "diagonal"', self.shape)
        if self.window is not None:
            check_int("window", self.window, 1, _ALL_BATCHES)

    def filled(self, posterior: AbstractPosterior) -> dict[str, Any]:
        return {
            "window": jnp.int32(_ALL_BATCHES if self.window is None else self.window),
            "n_rows": jnp.asarray(posterior.n_rows, posterior.dtype),
        }

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> FisherState:
        d = position.shape[0]
        nothing = jnp.zeros(d if self.shape == "diagonal" else (d, d), position.dtype)
        return FisherState(position, nothing, jnp.int32(0))

    def step(
        self, state: FisherState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        estimate = evaluate(state.position, None)
        assert estimate.spread is not None, "Fisher scoring requires the spread of its batch"
        assert self.window is not None, "`prepare` makes it a number"
        drawn_share = estimate.n_rows / self.n_rows
        # The covariance of the estimate is (N/n)NÎ.
        newest = drawn_share * second_moment(self.geometry.pull(estimate.spread), self.shape)
        count = jnp.minimum(state.count, self.window - 1) + 1
        fisher = state.fisher + (newest - state.fisher) / count
        force = 2 / jnp.sqrt(step_size) * noise - self.geometry.pull(estimate.gradient)
        move = 2 * _solve((1 + 1 / drawn_share) * fisher, 4 / step_size, force)
        position = state.position + self.geometry.push(move)
        return DynamicsStep(FisherState(position, fisher, count), estimate, {})


def _solve(information: Covariance, added: Scalar, force: Vector) -> Vector:
    """(J + aI)⁻¹ v, with J = `information` and a = `added`."""
    if information.ndim == 1:
        return force / (information + added)
    matrix = information + added * jnp.eye(force.shape[0], dtype=force.dtype)
    return cho_solve(cho_factor(matrix), force)
