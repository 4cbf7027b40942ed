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
component. θ has a floor, the least normal number of its dtype, because a gamma variable with
α = 0.01 is below it with probability 0.4 in float32. The floor changes w by less than 10⁻³⁷/θ. .
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Key, PRNGKeyArray, PyTree

from ..._core.arrays import Scalar
from ..._core.random import derived_keys, random_words, standard_normal, uniform_of

# Gamma and Poisson variables for whole arrays.
#
# JAX draws gamma variables one after the other on CPUs, at 1 to 3 µs each, and its rejection step
# for Poisson variables cancels in float32 at large rates. Here a loop proposes for all entries at
# once until all have accepted, usually 3 to 6 times, at about 0.2 µs per entry.
#
# Gamma (Marsaglia and Tsang, 2000): with d = a − 1/3, x ~ N(0, 1) and y = x/√(9d), accept
# d(1 + y)³ if y > −1 and
#
#     log u < x²/2 + d(1 − v + log v) = 3d(log(1 + y) − y + y²/2 − y³/3),   v = (1 + y)³
#
# Shapes a < 1 use Gamma(a) = Gamma(a + 1) U^{1/a}. The last form does not cancel for large d.
#
# Poisson: by inversion for rates λ ≤ 50. Larger rates use the expansion of Cornish and Fisher
# λ + √λ z + (z² − 1)/6 + (z − z³)/(72√λ), whose values are not integers. A gamma variable of shape
# a + J with such a J has a law within 10⁻⁵ of the exact one in Kolmogorov's distance.

_LARGE_RATE = 50.0
Vectors = Float[Array, "*k"]


def gamma_variables(key: PRNGKeyArray, shape: Vectors) -> Vectors:
    """A draw of Gamma(a, 1) for every a > 0 in `shape`; NaN where a is not a number."""
    boost_key, loop_key = derived_keys(key, 2)
    boosted = jnp.where(shape < 1, shape + 1, shape)
    d = boosted - 1 / 3
    scale = 1 / jnp.sqrt(9 * d)

    def propose(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        attempt, drawn, done = carry
        normal_key, uniform_key = derived_keys(jax.random.fold_in(loop_key, attempt), 2)
        y = scale * standard_normal(normal_key, shape.shape, shape.dtype)
        log_u = jnp.log(_uniform(uniform_key, shape))
        limit = 3 * d * (jnp.log1p(y) - y + y**2 / 2 - y**3 / 3)
        # Comparisons with NaN are false, so a shape that is not a number ends the loop.
        accepted = ~(y <= -1) & ~(log_u >= limit)
        drawn = jnp.where(done, drawn, d * (1 + y) ** 3)
        return attempt + 1, drawn, done | accepted

    start = (jnp.int32(0), jnp.zeros_like(shape), jnp.zeros(shape.shape, bool))
    _, drawn, _ = lax.while_loop(lambda carry: ~jnp.all(carry[2]), propose, start)
    power = jnp.where(shape < 1, 1 / shape, 0)
    return drawn * _uniform(boost_key, shape) ** power


def poisson_variables(key: PRNGKeyArray, rate: Vectors) -> Vectors:
    """A draw of Poisson(λ) for every λ ≥ 0 in `rate`, as floats; see above for large rates."""
    uniform_key, normal_key = derived_keys(key, 2)
    large = ~(rate <= _LARGE_RATE)
    searched = jnp.where(large, 0, rate)
    u = _uniform(uniform_key, rate)
    least = jnp.finfo(rate.dtype).eps / 8

    def search(carry: _Inversion) -> _Inversion:
        term = carry.term * searched / (carry.seen + 1)
        return _Inversion(carry.seen + 1, term, carry.total + term, carry.found + below(carry))

    def below(carry: _Inversion) -> Bool[Array, "*k"]:
        # Rounding may keep the total below u for ever: negligible terms after the mode end it.
        return (u > carry.total) & ((carry.term > least) | (carry.seen < searched))

    none = jnp.exp(-searched)
    start = _Inversion(jnp.zeros((), rate.dtype), none, none, jnp.zeros_like(rate))
    counted = lax.while_loop(lambda carry: jnp.any(below(carry)), search, start).found
    z = standard_normal(normal_key, rate.shape, rate.dtype)
    root = jnp.sqrt(rate)
    expanded = rate + root * z + (z**2 - 1) / 6 + (z - z**3) / (72 * root)
    return jnp.where(large, expanded, counted)


class _Inversion(NamedTuple):
    """An inversion after `seen` terms."""

    seen: Scalar
    term: Vectors
    total: Vectors  # P(J ≤ seen)
    found: Vectors


def _uniform(key: PRNGKeyArray, like: Vectors) -> Vectors:
    return uniform_of(random_words(key, like.shape)[..., 0], like.dtype)


def normalised(weights: Float[Array, "*n k"]) -> Float[Array, "*n k"]:
    """Weights divided by their sum over the last axis."""
    return weights / jnp.sum(weights, axis=-1, keepdims=True)


Counts = Float[Any, " ..."]
Step = Float[Any, ""]


class AbstractGammaTransition(eqx.Module):
    """Moves θ > 0, given counts n, such that θ/θ. is drawn from Dirichlet(α + n)."""

    moves_total: ClassVar[bool] = False
    """Whether θ. follows α. + n. , and does not only follow α. ."""

    @abc.abstractmethod
    def draw(
        self, key: PRNGKeyArray, steps: int, shape: tuple[int, ...], dtype: Any
    ) -> PyTree[Array]:
        """The randomness of `steps` moves of θ of this shape; the leading axis is the step."""

    @abc.abstractmethod
    def move(
        self, theta: Vectors, prior: Counts, counts: Counts, step_size: Step, drawn: PyTree[Array]
    ) -> Vectors:
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
        self, theta: Vectors, prior: Counts, counts: Counts, step_size: Step, drawn: Vectors
    ) -> Vectors:
        counts = jnp.broadcast_to(counts, theta.shape)
        pull = counts - jnp.sum(counts, axis=-1, keepdims=True) * normalised(theta)
        drift = step_size / 2 * (prior - theta + pull)
        moved = jnp.abs(theta + drift + jnp.sqrt(step_size * theta) * drawn)
        return jnp.maximum(moved, jnp.finfo(theta.dtype).tiny)


class CoxIngersollRoss(AbstractGammaTransition):
    """SCIR: the exact transition of the Cox–Ingersoll–Ross process."""

    moves_total = True

    def draw(
        self, key: PRNGKeyArray, steps: int, shape: tuple[int, ...], dtype: Any
    ) -> Key[Array, " steps"]:
        return derived_keys(key, steps)

    def move(
        self, theta: Vectors, prior: Counts, counts: Counts, step_size: Step, drawn: PRNGKeyArray
    ) -> Vectors:
        poisson_key, gamma_key = derived_keys(drawn, 2)
        left = -jnp.expm1(-step_size / 2)  # c, without cancellation at small steps
        hits = poisson_variables(poisson_key, theta * (jnp.exp(-step_size / 2) / left))
        moved = left * gamma_variables(gamma_key, prior + counts + hits)
        return jnp.maximum(moved, jnp.finfo(theta.dtype).tiny)
