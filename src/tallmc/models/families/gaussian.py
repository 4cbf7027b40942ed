"""Linear regression with Gaussian noise of unknown or known scale.

    y_i ~ N(x_iᵀβ, σ²),   s = log σ, shared by all rows,   f_i = s + (y_i − x_iᵀβ)² e^{−2s}/2
    β_j ~ N(0, v_j),      s ~ N(log sd(y), 3²)

If R² > 1/2, the Hessian at β = 0 is not positive definite. The search for the mode therefore starts
at the ridge regression on some of the rows, where the Hessian is nearly block diagonal.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..._core.arrays import Matrix, Scalar
from ..._core.errors import InvalidInput, check_number
from ..._rows.access import PerRow
from ..._rows.sharded import ShardedRows
from ..design import RegressionData, normal_prior, regression_data
from ..likelihood import START_MAX_DIM, AbstractLikelihood, Predictors, chosen_rows, row_weights
from ..posterior import ModelPosterior
from ..priors import NormalPrior
from ..regression import Family, Shared, regression_posterior

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_LOG_SCALE_SD = 3.0
LOG_SCALE_PRIOR = "log-normal: log sigma has mean log sd(y) and sd 3"


class Gaussian(AbstractLikelihood):
    """y ~ N(z, σ²) with σ² known: f = (y − z)²/2σ²."""

    noise_variance: Scalar

    elementwise = True
    log_concave = True
    is_normal = True

    def potential(self, z: PerRow, y: PerRow) -> PerRow:
        return (y - z) ** 2 / (2 * self.noise_variance)

    def slope(self, z: PerRow, y: PerRow) -> PerRow:
        return (z - y) / self.noise_variance

    def curvature(self, z: PerRow, y: PerRow) -> PerRow:
        return jnp.broadcast_to(1 / self.noise_variance, z.shape)

    def largest_curvature(self) -> Scalar:
        return 1 / self.noise_variance

    def bounded(self, order: int) -> bool:
        return order >= 2

    def constant(self, y: PerRow, trials: Any = None) -> PerRow:
        return jnp.broadcast_to(_LOG_SQRT_2PI + 0.5 * jnp.log(self.noise_variance), y.shape)

    def mean(self, z: PerRow) -> PerRow:
        return z

    def simulate(self, key: PRNGKeyArray, z: PerRow, trials: Any = None) -> PerRow:
        return z + jnp.sqrt(self.noise_variance) * jax.random.normal(key, z.shape, z.dtype)


class GaussianScale(AbstractLikelihood):
    """y ~ N(z, σ²) with unknown σ; z = (mean, log σ): f = s + (y − z)² e^{−2s}/2."""

    n_shared = 1
    is_normal = True

    def potential(self, z: Float[Array, " 2"], y: Scalar) -> Scalar:
        fitted, log_scale = z
        return log_scale + 0.5 * ((y - fitted) * jnp.exp(-log_scale)) ** 2

    def bounded(self, order: int) -> bool | None:
        return False if order == 3 else None

    def largest_cubic(self, z: Predictors, reach: Predictors, gram: Matrix, y: Scalar) -> Scalar:
        # Along (a, b) with v = (y − z)/σ and α = a/σ: |D³f| ≤ 6α²|b| + 12|α|b²|v| + 4|b|³v².
        precision = jnp.exp(-z[1] + reach[1])
        a, b = jnp.sqrt(jnp.diagonal(gram))
        a, miss = a * precision, (jnp.abs(y - z[0]) + reach[0]) * precision
        found = b * (6 * a**2 + 12 * a * b * miss + 4 * (b * miss) ** 2)
        return jnp.where(jnp.all(jnp.isfinite(reach)), found, jnp.inf)

    def distance(self, z: Float[Array, " 2"], move: Float[Array, " 2"]) -> Scalar:
        return jnp.maximum(jnp.abs(move[0]) * jnp.exp(-z[1]), jnp.abs(move[1]))

    def constant(self, y: PerRow, trials: Any = None) -> PerRow:
        return jnp.full_like(y, _LOG_SQRT_2PI)

    def mean(self, z: Float[Array, "n 2"]) -> PerRow:
        return z[:, 0]

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 2"], trials: Any = None) -> PerRow:
        return z[:, 0] + jnp.exp(z[:, 1]) * jax.random.normal(key, z.shape[:1], z.dtype)


def log_scale_from(data: RegressionData, start: float) -> Shared:
    """Log σ, where the search for the mode starts, with the prior N(log sd(y), 3²)."""
    log_sd = jnp.asarray(math.log(data.y_sd), data.dtype)
    prior = NormalPrior(jnp.asarray(_LOG_SCALE_SD**2, data.dtype), log_sd)
    return Shared("log_scale", math.log(start), prior)


def _shared(data: RegressionData, classes: int) -> list[Shared]:
    if data.y_sd == 0:
        cure = "Pass noise_variance if it is known."
        raise InvalidInput("y", "vary, unless noise_variance is given", "equal values", cure)
    return [log_scale_from(data, data.y_sd)]


FAMILY = Family(
    "gaussian",
    links=("identity",),
    likelihood=lambda link, classes, noise: GaussianScale() if noise is None else Gaussian(noise),
    shared=_shared,
    shared_prior={"sigma": LOG_SCALE_PRIOR},
    other_names=("normal", "linear"),
)


_MAX_ROUNDING = 0.1
"""Largest rounding error of the coefficients, in posterior standard deviations."""
_MIN_EIGENVALUE = 50.0
"""Least eigenvalue of XᵀX, scaled to a unit diagonal, in units of the precision."""


def linear_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    noise_variance: float | None = None,
    *,
    response: str | None = None,
    weights: ArrayLike | str | None = None,
    offset: ArrayLike | str | None = None,
) -> ModelPosterior:
    """Bayesian linear regression, y_i ~ N(x_iᵀβ, σ²), β_j ~ N(0, prior_variance).

    By default σ is unknown, and `log_scale` = log σ is a parameter with the weak prior
    N(log sd(y), 3²). With a known `noise_variance` the posterior is Gaussian, so samplers can be
    checked exactly on it.

    Draws are in the units of X and y, and in their precision. float32 is enough if the rounding of
    the coefficients is well below the posterior sd of the fitted values. Centre columns whose mean
    is large compared with their spread, such as a year.

    **Arguments:** those of `logistic_regression`; `y` is a number per row, and `noise_variance` is
    σ² if it is known.

    **Returns:** a posterior with the parameters `beta` and, unless `noise_variance` is given,
    `log_scale`.

    >>> X, y = [[1.0], [1.0], [1.0], [1.0]], [1.0, 3.0, 2.0, 2.0]
    >>> linear_regression(X, y, prior_variance=1e6).layout.names
    ('beta', 'log_scale')
    >>> posterior = linear_regression(X, y, prior_variance=1e6, noise_variance=1.0)
    >>> posterior.hessian(posterior.init)
    Array([[4.000001]], dtype=float32)
    """
    data = regression_data(X, y, response, weights, offset)
    if noise_variance is not None:
        known = check_number("noise_variance", noise_variance, 0, low_open=True)
        family = Gaussian(jnp.asarray(known, data.dtype))
        return regression_posterior(data, family, normal_prior(prior_variance, data))
    _shared(data, 0)  # raises if all y are equal
    prior = normal_prior(prior_variance, data)
    beta, log_scale = ridge_start(data, np.asarray(prior.variance, np.float64))
    return regression_posterior(data, GaussianScale(), prior, start=beta, shared=[log_scale])


def ridge_start(data: RegressionData, prior_variance: np.ndarray) -> tuple[np.ndarray, Shared]:
    """Coefficients and log σ of a ridge regression, where the search for the mode starts.

    `prior_variance` is a number, or one per common column; group effects are left out.
    """
    n_columns = prior_variance.size if prior_variance.ndim else data.n_columns
    beta, scale = np.zeros(n_columns), data.y_sd
    if n_columns <= START_MAX_DIM:
        beta, scale = _ridge(data, prior_variance)
    return beta, log_scale_from(data, scale)


def _ridge(data: RegressionData, prior_variance: np.ndarray) -> tuple[np.ndarray, float]:
    """The ridge regression on some of the rows, and the sd of its residuals, in float64.

    Raises if the precision of x does not resolve the columns or the coefficients.
    """
    rows = data.some(chosen_rows(data))
    x, n_rows, weights = np.asarray(rows.x), data.rows.n_rows, row_weights(rows)
    n, d = x.shape
    y = rows.y if rows.offset is None else rows.y - rows.offset
    gram, products = (x * weights[:, None]).T @ x, x.T @ (weights * y)
    # The penalty depends on the noise. With enough rows, nearly least squares gives a first guess.
    has_many_rows = n > 2 * d
    scale = data.y_sd * (1e-3 if has_many_rows else 1.0)
    for _ in range(2 if has_many_rows else 1):
        penalty = np.broadcast_to(scale**2 / prior_variance * (n / n_rows), (d,))
        size = np.sqrt(np.diag(gram) + penalty)
        scaled = (gram + np.diag(penalty)) / np.outer(size, size)
        beta = np.linalg.lstsq(scaled, products / size, rcond=None)[0] / size
        scale = float(np.sqrt(np.average((y - x @ beta) ** 2, weights=weights)))
    eps = float(jnp.finfo(data.dtype).eps)
    # Rounding β_j changes it by a uniform error of sd eps |β_j| / √12.
    rounding = eps * np.sqrt(np.sum(beta**2 * np.diag(gram)) / 12 * n_rows / n)
    if rounding > _MAX_ROUNDING * scale:
        found = f"noise of sd {scale:.3g} and coefficients up to {np.abs(beta).max():.3g}"
        further = " If y is a function of the columns, pass noise_variance."
        _raise_unresolved(data.dtype, found, further)
    if np.linalg.eigvalsh(scaled)[0] < _MIN_EIGENVALUE * eps:
        _raise_unresolved(data.dtype, "columns that are collinear up to rounding", "")
    return beta, scale


def _raise_unresolved(dtype: Any, found: str, further_cure: str) -> NoReturn:
    cure = (
        "Centre and scale the columns and y, drop columns that others determine, or use float64: "
        'jax.config.update("jax_enable_x64", True).'
    )
    rule = f"have noise and columns that {dtype} resolves"
    raise InvalidInput("X and y", rule, found, cure + further_cure)
