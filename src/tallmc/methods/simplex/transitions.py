"""Moves of positive θ whose normalised last axis is a point on the simplex.

Counts n of K categories with probabilities w and the prior w ~ Dirichlet(α) have the posterior
w ~ Dirichlet(α + n). The chain moves θ > 0 with w = θ/θ., where θ. = Σ_k θ_k, from *estimated*
counts n̂ ≥ 0 of all rows. Both moves use the step size ε of the library: the drift of a step is ε/2
times the drift below, as in θ' = θ − (ε/2)∇f̂ + √ε η. A step lasts h = ε/2 in the time of the
papers' processes.

Expanded mean (SGRLD), Patterson and Teh (2013). The metric is diag(1/θ):

    θ' = |θ + (ε/2)(α − θ + n̂ − n̂.θ/θ.) + √(εθ) η|,   η ~ N(0, I)

Without reflection and with n̂ = 0 the stationary variance is α/(1 − ε/4), so the bias is small where
θ ≫ ε. Near zero the noise √(εθ) exceeds θ itself, and θ is about ε whatever α is: components that
should be close to zero are far too large. The bias vanishes with ε, slowly.

Cox–Ingersoll–Ross (SCIR), Baker, Fearnhead, Fox and Nemeth (2018). The process
dθ = ½(â − θ)dt + √θ dW with â = α + n̂ has the exact transition, with c = 1 − e^{−h},

    θ' = (c/2) W,   W ~ χ²(2â, 2θe^{−h}/c):   θ' = c·Gamma(â + J, 1),   J ~ Poisson(θe^{−h}/c)

It has no discretisation error: with n̂ = n the law Gamma(α + n, 1) is invariant at every h, and w
is exactly Dirichlet(α + n). With independent unbiased n̂ of variance v the stationary mean of θ is
still α + n. From V = e^{−2h}V + c²(α + n) + 2ce^{−h}(α + n) + c²v its variance is

    V = α + n + v(1 − e^{−h})/(1 + e^{−h}),

which is the bias of subsampling alone.

The cost of a move is one normal (SGRLD), or one Poisson and one gamma variable (SCIR), per
component. θ has the floor `smallest(dtype)`, the least normal number, because a gamma variable with
α = 0.01 is below it with probability 0.4 in float32. The floor changes w by less than 10⁻³⁷/θ. .
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PRNGKeyArray, PyTree

from ...core.random import derived_keys, standard_normal
from .variables import gamma_variables, poisson_variables


def smallest(dtype: Any) -> float:
    """The floor of θ: the least normal number of this precision."""
    return float(jnp.finfo(dtype).tiny)


class AbstractGammaTransition(eqx.Module):
    """Moves θ > 0, given counts n, such that θ/θ. is drawn from Dirichlet(α + n).

    >>> import jax
    >>> import jax.numpy as jnp
    >>> transition = CoxIngersollRoss()
    >>> drawn = transition.draw(jax.random.key(1), 1, (3,), jnp.float32)
    >>> first = jax.tree.map(lambda of_steps: of_steps[0], drawn)
    >>> prior, counts = jnp.full(3, 0.1), jnp.array([5.0, 1.0, 0.0])
    >>> transition.move(jnp.ones(3), prior, counts, jnp.float32(0.1), first).shape
    (3,)
    """

    @abc.abstractmethod
    def draw(
        self, key: PRNGKeyArray, steps: int, shape: tuple[int, ...], dtype: Any
    ) -> PyTree[Array]:
        """The randomness of `steps` moves of θ of this shape; the leading axis is the step."""

    @abc.abstractmethod
    def move(
        self,
        theta: Float[Array, "*k"],
        prior: Float[Any, " ..."],
        counts: Float[Any, " ..."],
        step_size: Float[Any, ""],
        drawn: PyTree[Array],
    ) -> Float[Array, "*k"]:
        """Move θ by one step of size ε.

        `prior` is α and `counts` is n̂, the estimate for all rows; both broadcast against `theta`.
        The last axis is the simplex. `drawn` is the randomness of one step.
        """


class ExpandedMean(AbstractGammaTransition):
    """SGRLD in the expanded-mean parametrisation."""

    def draw(
        self, key: PRNGKeyArray, steps: int, shape: tuple[int, ...], dtype: Any
    ) -> Float[Array, "steps ..."]:
        return standard_normal(key, (steps, *shape), dtype)

    def move(
        self,
        theta: Float[Array, "*k"],
        prior: Float[Any, " ..."],
        counts: Float[Any, " ..."],
        step_size: Float[Any, ""],
        drawn: Float[Array, "*k"],
    ) -> Float[Array, "*k"]:
        share = theta / jnp.sum(theta, axis=-1, keepdims=True)
        counts = jnp.broadcast_to(counts, theta.shape)
        pull = counts - jnp.sum(counts, axis=-1, keepdims=True) * share
        drift = step_size / 2 * (prior - theta + pull)
        moved = jnp.abs(theta + drift + jnp.sqrt(step_size * theta) * drawn)
        return jnp.maximum(moved, smallest(theta.dtype))


class CoxIngersollRoss(AbstractGammaTransition):
    """SCIR: the exact transition of the Cox–Ingersoll–Ross process."""

    def draw(
        self, key: PRNGKeyArray, steps: int, shape: tuple[int, ...], dtype: Any
    ) -> Key[Array, " steps"]:
        return derived_keys(key, steps)

    def move(
        self,
        theta: Float[Array, "*k"],
        prior: Float[Any, " ..."],
        counts: Float[Any, " ..."],
        step_size: Float[Any, ""],
        drawn: PRNGKeyArray,
    ) -> Float[Array, "*k"]:
        poisson_key, gamma_key = derived_keys(drawn, 2)
        left = -jnp.expm1(-step_size / 2)  # c, without cancellation at small steps
        hits = poisson_variables(poisson_key, theta * (jnp.exp(-step_size / 2) / left))
        moved = left * gamma_variables(gamma_key, prior + counts + hits)
        return jnp.maximum(moved, smallest(theta.dtype))
