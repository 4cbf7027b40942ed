"""The likelihood of a row as a function of its linear predictors.

    −log p(y | z) = f(z; y) + c(y),   z = (z₁, …, z_K, s₁, …, s_E)

K predictors come from the columns of a design matrix; E parameters are *shared* by all rows, such
as a dispersion or cut points. Derivatives come from automatic differentiation. An *elementwise*
likelihood has K = 1 and E = 0: z is a number per row, and closed forms of f' and f'' pay.
No potential overflows while f is finite, and none has large terms that nearly cancel.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._core.arrays import Matrix, Scalar
from .._rows.access import PerRow
from .design import Observations, RegressionData

Predictors = Float[Array, " k"]
"""The predictors of one row, then the shared parameters."""
ResponseKind = Literal[
    "number", "binary", "count", "positive", "nonnegative", "share", "times", "classes", "ordered"
]
WHOLE: tuple[ResponseKind, ...] = ("binary", "count", "classes", "ordered")
"""The kinds of responses that are whole numbers."""


class AbstractLikelihood(eqx.Module):
    """The potential of one row, and the distribution of its response. `potential` is required."""

    elementwise: ClassVar[bool] = False
    """Whether `potential`, `slope` and `curvature` are elementwise functions of one predictor."""
    response: ClassVar[ResponseKind] = "number"
    has_trials: ClassVar[bool] = False
    """Whether y is a share of successes, and the weight of a row its number of trials."""
    log_concave: ClassVar[bool] = False
    """Whether f is convex in z."""
    is_logistic: ClassVar[bool] = False
    """Whether f = log(1 + e^∓z), which has the tangent bound of Jaakkola and Jordan."""
    is_normal: ClassVar[bool] = False
    """Whether y is normal with the mean z, so that integrals over effects have a closed form."""
    row_cost: ClassVar[int] = 1
    """What a potential takes, in units of a common one."""
    comparable: ClassVar[bool] = True
    """Whether simulated responses can be compared with those of the rows: no censoring, no loss."""
    exact_changes: ClassVar[bool] = False
    """Whether `change` has a closed form, so that it rounds as a number of the size of the change,
    not of f. Errors of parameters that all rows share are alike and add up."""
    fused: ClassVar[bool] = False
    """Whether the fused GPU kernel can compute `slope`: no parameters, no special functions."""

    @property
    def n_predictors(self) -> int:
        """K, the number of predictors from columns."""
        return 1

    @property
    def n_shared(self) -> int:
        """E, the number of shared parameters."""
        return 0

    @abc.abstractmethod
    def potential(self, z: Float[Array, " ..."], y: Float[Array, ...]) -> Float[Array, ...]:
        """f(z; y) of one row with the vector z; if elementwise, of any numbers z."""

    def slope(self, z: PerRow, y: PerRow) -> PerRow:
        """∂f/∂z of an elementwise likelihood."""
        return jax.jvp(lambda at: self.potential(at, y), (z,), (jnp.ones_like(z),))[1]

    def curvature(self, z: PerRow, y: PerRow) -> PerRow:
        """∂²f/∂z² of an elementwise likelihood."""
        return jax.jvp(lambda at: self.slope(at, y), (z,), (jnp.ones_like(z),))[1]

    def change(
        self, z: Float[Array, "n ..."], y: PerRow
    ) -> Callable[[Float[Array, "n ..."]], Array]:
        """f(z + t) − f(z) of rows as a function of t, if elementwise or `exact_changes`."""
        # Without a barrier XLA computes it again for every t.
        before = lax.optimization_barrier(self.potential(z, y))
        return lambda t: self.potential(z + t, y) - before

    def derivative(self, order: int, z: PerRow, y: PerRow) -> PerRow:
        """∂ᵏf/∂zᵏ of an elementwise likelihood, with k = `order`."""
        if order <= 2:
            return (self.potential, self.slope, self.curvature)[order](z, y)
        return jax.jvp(lambda at: self.derivative(order - 1, at, y), (z,), (jnp.ones_like(z),))[1]

    # Bounds on derivatives. Exact accept steps compare every row with its Taylor expansion: of any
    # order up to 3 for elementwise likelihoods, of order 2 for the others. In coordinates u the
    # predictors of a row move by Δz = Ju. The remainder of order 2 is below
    # sup |D³f[Ju, Ju, Ju]|/6. For symmetric forms in Euclidean space the supremum over one unit
    # vector u is that over three different ones (Banach, 1938), so it bounds changes of the
    # remainder too.

    def largest_curvature(self) -> Any:
        """The supremum over z and y of the largest eigenvalue of ∂²f/∂z²; None if infinite."""
        return None

    def bounded(self, order: int) -> bool | None:
        """Whether the derivative of this order is bounded for all z; None for no known bound.

        If False, it is bounded for z in any box.
        """
        return None

    def turning_points(self, order: int, y: PerRow) -> tuple[PerRow, ...]:
        """Where ∂ᵏf/∂zᵏ, k = `order` ≤ 4, of an elementwise likelihood has its local extremes."""
        return ()

    def largest_derivative(self, order: int, low: PerRow, high: PerRow, y: PerRow) -> PerRow:
        """The largest |∂ᵏf/∂zᵏ| for z between `low` and `high`; 1 ≤ k = `order` ≤ 4."""
        # Between two turning points a derivative is monotone.
        inside = [jnp.clip(point, low, high) for point in self.turning_points(order, y)]
        values = [jnp.abs(self.derivative(order, z, y)) for z in (low, high, *inside)]
        return jnp.max(jnp.stack(values), axis=0)

    def largest_cubic(self, z: Predictors, reach: Predictors, gram: Matrix, y: Scalar) -> Scalar:
        """A bound on |D³f(z + m)[v, v, v]|, infinite if there is none, if `bounded(3)` is known.

        For all |m_k| ≤ `reach`_k, which may be infinite, and all v = Ju with ‖u‖ ≤ 1;
        `gram` = JJᵀ.
        """
        raise NotImplementedError(type(self).__name__)

    def distance(self, z: Predictors, move: Predictors) -> Scalar:
        """How far the predictors move, in units in which f has no fine structure."""
        return jnp.max(jnp.abs(move))

    def starting_point(self, block: Observations) -> StartingPoint | None:
        """Where the search for the mode starts, from some rows on the host; None for zero.

        Asked only of likelihoods with parameters that all rows share.
        """
        return None

    # The law of the response.

    def constant(self, y: PerRow, trials: Any = None) -> PerRow:
        """c(y); times the trials if the likelihood has trials."""
        return jnp.zeros_like(y)

    @abc.abstractmethod
    def mean(self, z: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
        """E y; for classes, the probability of each class."""

    def is_density(self, y: PerRow) -> PerRow:
        """1 for rows whose likelihood is a density of y, 0 where it is a probability."""
        return jnp.ones_like(y)

    def median(self, z: Float[Array, "n ..."]) -> PerRow:
        """The median of a survival time."""
        raise NotImplementedError(type(self).__name__)

    def survival(
        self, z: Float[Array, "n ..."], log_times: Float[Array, " t"]
    ) -> Float[Array, "n t"]:
        """P(y > t) of a survival time."""
        raise NotImplementedError(type(self).__name__)

    @abc.abstractmethod
    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n ..."], trials: Any = None) -> PerRow:
        """A draw of y per row."""


@jax.custom_jvp
def softplus(z: Float[Array, "*k"]) -> Float[Array, "*k"]:
    """log(1 + eᶻ), the bits of `jax.nn.softplus` in a quarter of its time."""
    return jnp.maximum(z, 0) + jnp.log1p(jnp.exp(-jnp.abs(z)))


@softplus.defjvp
def _softplus_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return softplus(*primals), jax.nn.sigmoid(primals[0]) * tangents[0]


_LONGEST = 80.0
"""e^t would overflow in float32 beyond. There, and beyond |z|, the change grows as t."""
_SHORT = 0.25
"""Moves up to which a series of order 6 leaves out less than float32 rounds."""


def softplus_change(z: PerRow, y: PerRow | float) -> Callable[[Float[Array, "n ..."]], Array]:
    """The change of log(1 + eᶻ) − yz as a function of the change t of z, without cancellation."""
    # log(1 + e^(z + t)) − log(1 + e^z) = log(1 + p(e^t − 1)), p = 1/(1 + e^−z). For z > 0 the
    # same with −z and −t, plus t: then p ≤ ½, so nothing cancels.
    sign, p = jnp.where(z > 0, -1.0, 1.0), jax.nn.sigmoid(-jnp.abs(z))
    far, slope = jnp.maximum(jnp.abs(z), _LONGEST), (z > 0) - y
    sign, p, slope, far = lax.optimization_barrier((sign, p, slope, far))

    def closed(t: Float[Array, "n ..."]) -> Array:
        way = sign * t
        near = jnp.log1p(p * jnp.expm1(jnp.minimum(way, _LONGEST)))
        return near + jnp.maximum(way - far, 0) + slope * t

    if p.dtype != jnp.float32:
        return closed
    # All derivatives of order k ≥ 2 are pq times polynomials in pq, for odd k times q − p.
    pq, skew = p * (1 - p), sign * (1 - 2 * p)
    of_power = (
        sign * p + slope,
        pq / 2,
        pq * skew / 6,
        pq * (1 - 6 * pq) / 24,
        pq * skew * (1 - 12 * pq) / 120,
        pq * (1 - 30 * pq + 120 * pq**2) / 720,
    )

    def series(t: Float[Array, "n ..."]) -> Array:
        total = jnp.zeros_like(t)
        for coefficient in of_power[::-1]:
            total = (total + coefficient) * t
        return total

    # The moves of a check are short where rows are many. Without a barrier XLA computes the
    # coefficients again for every move.
    of_power = lax.optimization_barrier(of_power)
    return lambda t: lax.cond(jnp.max(jnp.abs(t)) < _SHORT, series, closed, t)


# log Γ without cancellation, by Stirling's formula and its remainder δ.
#
#     log Γ(x) = (x − ½) log x − x + ½ log 2π + δ(x)
#
# Differences such as log Γ(α) − α log α + α are small next to their terms for large α. In float32
# an error of 10⁻⁷ α log α per row adds up over the rows. Likelihoods cancel the large terms by
# hand, and δ ≈ 1/12x is left. Its derivatives have series of their own.

_SHIFT = 8.0
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
"""δ(x) = Σ_k a_k x^{−(2k+1)}, accurate to 1e-16 for x ≥ 8."""


def stirling_remainder(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """δ(x) for x > 0."""
    return remainder_derivative(0, x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def remainder_derivative(order: int, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The derivative of δ of this order, by its own series.

    The derivatives that JAX would make of δ are programs many times as large, and take XLA most of
    the time of a fit.
    """
    # δ(x) = δ(x + 8) + (x + 7½) log(x + 8) − (x + ½) log x − log (x + 1)⋯(x + 7) − 8
    is_small = x < _SHIFT
    small = jnp.where(is_small, x, 1)
    if order == 0:
        product = functools.reduce(lambda total, j: total * (small + j), range(2, 8), small + 1)
        steps = (small + 7.5) * jnp.log(small + 8) - (small + 0.5) * jnp.log(small)
        steps = steps - jnp.log(product) - 8
    else:
        # With the trapezium rule s_k = ½x⁻ᵏ + (x + 1)⁻ᵏ + ⋯ + (x + 7)⁻ᵏ + ½(x + 8)⁻ᵏ, the
        # derivative is log(1 + 8/x) − s₁, and its derivatives are those of both terms.
        inverses = [1 / (small + j) for j in range(9)]
        powers = [inverse**order for inverse in inverses]
        rule = (powers[0] + powers[8]) / 2 + sum(powers[1:8])
        if order == 1:
            steps = jnp.log1p(8 / small) - rule
        else:
            first, last = inverses[0] ** (order - 1), inverses[8] ** (order - 1)
            sign = (-1) ** order
            steps = sign * math.factorial(order - 2) * (last - first + (order - 1) * rule)
    inverse = 1 / jnp.where(is_small, x + _SHIFT, x)
    total = jnp.zeros_like(x)
    for k, coefficient in reversed(list(enumerate(_SERIES))):
        # dⁿ/dxⁿ x^{−m} = (−1)ⁿ m(m + 1)⋯(m + n − 1) x^{−m−n}
        factor = (-1) ** order * math.perm(2 * k + order, order)
        total = total * inverse**2 + factor * coefficient
    return total * inverse ** (order + 1) + jnp.where(is_small, steps, 0)


@remainder_derivative.defjvp
def _remainder_jvp(order: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Any, Any]:
    (x,), (change,) = primals, tangents
    return remainder_derivative(order, x), remainder_derivative(order + 1, x) * change


def largest_between(
    function: Callable[[Array], Array], low: Scalar, high: Scalar, turns: tuple[float, ...]
) -> Scalar:
    """The largest |function| between `low` and `high`, if it turns at `turns` only."""
    points = [low, high, *(jnp.clip(turn, low, high) for turn in turns)]
    return jnp.max(jnp.abs(jnp.stack([function(point) for point in points])))


# Where the search for the mode starts, from regressions on some of the rows.
#
# A Newton search from zero fails where f is not convex, as for outliers, or needs hundreds of
# passes where e^z is far from the responses. Least squares on a response that is linear in z ends
# close to the mode. It costs one regression on at most a few tens of thousands of rows, in float64
# on the host.

START_MAX_DIM = 500
"""Newton's limit in `find_anchor`; L-BFGS needs no positive definite Hessian."""
_START_ROWS = 20_000
_START_ROWS_PER_COLUMN = 20
_LEAST_EIGENVALUE = 1e-10
_ROBUST_ROUNDS = 30
_ROBUST_DEGREES = 4.0
_NORMAL_QUARTILE = 0.6744897501960817


class StartingPoint(NamedTuple):
    """The common coefficients, and the parameters that all rows share."""

    beta: Float[np.ndarray, " c"]
    shared: tuple[Any, ...]
    """A number or a vector each."""


def chosen_rows(data: RegressionData) -> Int[np.ndarray, " n"]:
    """The numbers of some of the rows, or of all if there are few."""
    n_rows = data.rows.n_rows
    n = min(n_rows, max(_START_ROWS, _START_ROWS_PER_COLUMN * data.n_columns))
    if n == n_rows:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n_rows, n, replace=False))


def least_squares(
    block: Observations, response: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, " n"]]:
    """The weighted regression of a response minus the offsets, and its residuals."""
    y = response if block.offset is None else response - block.offset
    x = np.asarray(block.x)
    size = np.sqrt(np.maximum(weights @ x**2, np.finfo(float).tiny))
    scaled = x / size
    gram = (scaled * weights[:, None]).T @ scaled
    products = scaled.T @ (weights * y)
    beta = np.linalg.lstsq(gram, products, rcond=_LEAST_EIGENVALUE)[0] / size
    return beta, y - x @ beta


def row_weights(block: Observations) -> Float[np.ndarray, " n"]:
    """The weights of the rows; ones if there are none."""
    return np.ones(len(block.y)) if block.weight is None else np.asarray(block.weight)


def robust_regression(block: Observations) -> tuple[Float[np.ndarray, " c"], float]:
    """Coefficients and scale with t₄ noise, by iterated least squares."""
    weights = row_weights(block)
    beta, residuals = least_squares(block, np.asarray(block.y), weights)
    scale = _scale_of(residuals)
    for _ in range(_ROBUST_ROUNDS):
        if scale == 0:
            break
        each = (_ROBUST_DEGREES + 1) / (_ROBUST_DEGREES + (residuals / scale) ** 2)
        beta, residuals = least_squares(block, np.asarray(block.y), weights * each)
        scale = _scale_of(residuals)
    return beta, scale


def _scale_of(residuals: Float[np.ndarray, " n"]) -> float:
    """The sd of normal noise with the same median of |r|."""
    return float(np.median(np.abs(residuals)) / _NORMAL_QUARTILE)
