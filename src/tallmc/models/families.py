"""Families of a generalised linear model, as functions of the linear predictor z = xᵀθ.

A row's potential is f(z; y) = −log p(y | z) − c(y). `slope` is ∂f/∂z and `curvature` is ∂²f/∂z², so
∇f_i = slope · x_i and ∇²f_i = curvature · x_i x_iᵀ. f is convex in z: `GeneralisedLinear` is
log-concave. No formula overflows while f is finite. The potentials have no large terms that nearly
cancel.

Between two of its turning points a derivative is monotone. The supremum of its absolute value over
an interval is therefore attained at an end or at a turning point in the interval.
"""

from __future__ import annotations

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln, log_ndtr
from jaxtyping import Array, Float, PRNGKeyArray

from .observations import RegressionRows, weighted

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_FAR = 5.0
_FRACTION_TERMS = 25  # accurate to 1e-16 beyond _FAR

# With p = 1/(1 + e^−z), the third derivative p(1−p)(1−2p) turns where p(1−p) = 1/6, and the fourth,
# p(1−p)(1 − 6p(1−p)), where p = 1/2 or p(1−p) = 1/12.
_LOGISTIC_THIRD = math.log((3 + math.sqrt(3)) / (3 - math.sqrt(3)))
_LOGISTIC_FOURTH = math.log((3 + math.sqrt(6)) / (3 - math.sqrt(6)))
_LOGISTIC_TURNS: dict[int, tuple[float, ...]] = {
    1: (),
    2: (0.0,),
    3: (-_LOGISTIC_THIRD, _LOGISTIC_THIRD),
    4: (-_LOGISTIC_FOURTH, 0.0, _LOGISTIC_FOURTH),
}
# Zeros of the fourth and fifth derivatives of −log Φ.
_PROBIT_TURNS: dict[int, tuple[float, ...]] = {
    1: (),
    2: (),
    3: (1.00236934,),
    4: (-0.02983362, 2.07128894),
}


class AbstractFamily(eqx.Module):
    """The potential of one row, its derivatives with respect to z, and the law of the response."""

    @abc.abstractmethod
    def potential(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        """f(z; y)."""

    @abc.abstractmethod
    def slope(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        """∂f/∂z."""

    @abc.abstractmethod
    def curvature(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        """∂²f/∂z²."""

    @abc.abstractmethod
    def largest_curvature(self) -> Float[Array, ""] | None:
        """The supremum of the curvature over z; None if it is infinite."""

    @abc.abstractmethod
    def turning_points(self, order: int, y: Float[Array, " n"]) -> tuple[Float[Array, " n"], ...]:
        """Where ∂ᵏf/∂zᵏ, k = `order` ≤ 4, has its local extremes in z, per row."""

    @abc.abstractmethod
    def has_bounded(self, order: int) -> bool:
        """Whether ∂ᵏf/∂zᵏ, k = `order` ≥ 1, is bounded over all z."""

    def derivative(
        self, order: int, z: Float[Array, " n"], y: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        """∂ᵏf/∂zᵏ with k = `order`."""
        if order <= 2:
            return (self.potential, self.slope, self.curvature)[order](z, y)
        return jax.jvp(lambda at: self.derivative(order - 1, at, y), (z,), (jnp.ones_like(z),))[1]

    def largest_derivative(
        self, order: int, low: Float[Array, " n"], high: Float[Array, " n"], y: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        """The largest |∂ᵏf/∂zᵏ| for z between `low` and `high`; 1 ≤ k = `order` ≤ 4."""
        inside = [jnp.clip(point, low, high) for point in self.turning_points(order, y)]
        values = [jnp.abs(self.derivative(order, z, y)) for z in (low, high, *inside)]
        return jnp.max(jnp.stack(values), axis=0)

    @abc.abstractmethod
    def constant(self, rows: RegressionRows) -> Float[Array, " n"]:
        """w_i c(y_i)."""

    @abc.abstractmethod
    def mean(self, z: Float[Array, " n"]) -> Float[Array, " n"]:
        """E y."""

    @abc.abstractmethod
    def simulate(
        self, key: PRNGKeyArray, z: Float[Array, " n"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        """A draw of y per row."""


class Bernoulli(AbstractFamily):
    """y ∈ {0, 1}, P(y = 1) = 1/(1 + e^−z): f = log(1 + e^−sz) with s = 2y − 1."""

    def potential(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jax.nn.softplus((1 - 2 * y) * z)

    def slope(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        # Equals σ(z) − y, without the cancellation for a well classified row.
        sign = 1 - 2 * y
        return sign * jax.nn.sigmoid(sign * z)

    def curvature(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jax.nn.sigmoid(z) * jax.nn.sigmoid(-z)

    def largest_curvature(self) -> Float[Array, ""]:
        return jnp.asarray(0.25)

    def turning_points(self, order: int, y: Float[Array, " n"]) -> tuple[Float[Array, " n"], ...]:
        return tuple(jnp.full_like(y, point) for point in _LOGISTIC_TURNS[order])

    def has_bounded(self, order: int) -> bool:
        return True

    def constant(self, rows: RegressionRows) -> Float[Array, " n"]:
        return jnp.zeros_like(rows.y)

    def mean(self, z: Float[Array, " n"]) -> Float[Array, " n"]:
        return jax.nn.sigmoid(z)

    def simulate(
        self, key: PRNGKeyArray, z: Float[Array, " n"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        return jax.random.bernoulli(key, self.mean(z)).astype(z.dtype)


class BernoulliProbit(AbstractFamily):
    """y ∈ {0, 1}, P(y = 1) = Φ(z): f = −log Φ(sz) with s = 2y − 1."""

    def potential(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return -log_ndtr((2 * y - 1) * z)

    def slope(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        sign = 2 * y - 1
        return -sign * _inverse_mills(sign * z)[0]

    def curvature(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        ratio, excess = _inverse_mills((2 * y - 1) * z)
        return ratio * excess

    def largest_curvature(self) -> Float[Array, ""]:
        return jnp.asarray(1.0)

    def turning_points(self, order: int, y: Float[Array, " n"]) -> tuple[Float[Array, " n"], ...]:
        return tuple((2 * y - 1) * point for point in _PROBIT_TURNS[order])

    def has_bounded(self, order: int) -> bool:
        return order >= 2

    def constant(self, rows: RegressionRows) -> Float[Array, " n"]:
        return jnp.zeros_like(rows.y)

    def mean(self, z: Float[Array, " n"]) -> Float[Array, " n"]:
        return jax.scipy.stats.norm.cdf(z)

    def simulate(
        self, key: PRNGKeyArray, z: Float[Array, " n"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        return (jax.random.normal(key, z.shape, z.dtype) < z).astype(z.dtype)


def _inverse_mills(z: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """r = φ(z)/Φ(z), and r + z, which is about −1/z for very negative z."""
    # r + z = 1/(x + 2/(x + 3/(x + …))) with x = −z; the quotient of densities loses all digits.
    is_far = z < -_FAR
    x = jnp.where(is_far, -z, _FAR)
    fraction = x
    for k in range(_FRACTION_TERMS, 1, -1):
        fraction = x + k / fraction
    near = jnp.where(is_far, 0.0, z)
    ratio = jnp.exp(-0.5 * near**2 - _LOG_SQRT_2PI - log_ndtr(near))
    return jnp.where(is_far, x + 1 / fraction, ratio), jnp.where(is_far, 1 / fraction, ratio + z)


class Binomial(AbstractFamily):
    """Successes in t trials, P = 1/(1 + e^−z), with y the share of successes and t the weight.

    t f = t [log(1 + e^z) − yz]
    """

    def potential(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return y * jax.nn.softplus(-z) + (1 - y) * jax.nn.softplus(z)

    def slope(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return (1 - y) * jax.nn.sigmoid(z) - y * jax.nn.sigmoid(-z)

    def curvature(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jax.nn.sigmoid(z) * jax.nn.sigmoid(-z)

    def largest_curvature(self) -> Float[Array, ""]:
        return jnp.asarray(0.25)

    def turning_points(self, order: int, y: Float[Array, " n"]) -> tuple[Float[Array, " n"], ...]:
        return tuple(jnp.full_like(y, point) for point in _LOGISTIC_TURNS[order])

    def has_bounded(self, order: int) -> bool:
        return True

    def constant(self, rows: RegressionRows) -> Float[Array, " n"]:
        trials = _trials(rows)
        successes = trials * rows.y
        return gammaln(successes + 1) + gammaln(trials - successes + 1) - gammaln(trials + 1)

    def mean(self, z: Float[Array, " n"]) -> Float[Array, " n"]:
        return jax.nn.sigmoid(z)

    def simulate(
        self, key: PRNGKeyArray, z: Float[Array, " n"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        trials = _trials(rows)
        return jax.random.binomial(key, trials, self.mean(z), dtype=z.dtype) / trials


def _trials(rows: RegressionRows) -> Float[Array, " n"]:
    return jnp.ones_like(rows.y) if rows.weight is None else rows.weight


class Gaussian(AbstractFamily):
    """y ~ N(z, σ²) with σ² known: f = (y − z)²/2σ²."""

    noise_variance: Float[Array, ""]

    def potential(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return (y - z) ** 2 / (2 * self.noise_variance)

    def slope(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return (z - y) / self.noise_variance

    def curvature(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.broadcast_to(1 / self.noise_variance, z.shape)

    def largest_curvature(self) -> Float[Array, ""]:
        return 1 / self.noise_variance

    def turning_points(self, order: int, y: Float[Array, " n"]) -> tuple[Float[Array, " n"], ...]:
        return ()

    def has_bounded(self, order: int) -> bool:
        return order >= 2

    def constant(self, rows: RegressionRows) -> Float[Array, " n"]:
        one = _LOG_SQRT_2PI + 0.5 * jnp.log(self.noise_variance)
        return weighted(rows, jnp.broadcast_to(one, rows.y.shape))

    def mean(self, z: Float[Array, " n"]) -> Float[Array, " n"]:
        return z

    def simulate(
        self, key: PRNGKeyArray, z: Float[Array, " n"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        return z + jnp.sqrt(self.noise_variance) * jax.random.normal(key, z.shape, z.dtype)


class Poisson(AbstractFamily):
    """y ~ Poisson(e^z): f = e^z − yz minus its minimum. The curvature has no bound."""

    def potential(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        # f = y(e^t − 1 − t) with t = z − log y: as small as the row's misfit, even for large y.
        positive = y > 0
        t = z - jnp.log(jnp.where(positive, y, 1))
        return jnp.where(positive, y * (jnp.expm1(t) - t), jnp.exp(z))

    def slope(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.exp(z) - y

    def curvature(self, z: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.exp(z)

    def largest_curvature(self) -> None:
        return None

    def turning_points(self, order: int, y: Float[Array, " n"]) -> tuple[Float[Array, " n"], ...]:
        return ()

    def has_bounded(self, order: int) -> bool:
        return False

    def constant(self, rows: RegressionRows) -> Float[Array, " n"]:
        positive = rows.y > 0
        y = jnp.where(positive, rows.y, 1)
        return weighted(rows, jnp.where(positive, y - y * jnp.log(y) + gammaln(y + 1), 0))

    def mean(self, z: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.exp(z)

    def simulate(
        self, key: PRNGKeyArray, z: Float[Array, " n"], rows: RegressionRows
    ) -> Float[Array, " n"]:
        return jax.random.poisson(key, self.mean(z)).astype(z.dtype)
