"""Robust regression: y ~ t_ν(z, σ) with unknown scale and degrees of freedom.

    u = (y − z)/σ,   f = log σ + (ν + 1)/2 · log(1 + u²/ν) + log B(1/2, ν/2) + (log ν)/2
    log B(1/2, h) + (log 2h)/2 = ½ log 2π + ½ − h log(1 + 1/2h) + δ(h) − δ(h + ½)

The second form has no large terms that nearly cancel; δ is Stirling's remainder (`log_gamma.py`).
The shared parameters are log σ and log ν.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..core.errors import InvalidInput
from ..rows.sharded import ShardedRows
from .design import RegressionData, normal_prior, regression_data
from .likelihood import AbstractLikelihood
from .log_gamma import stirling_remainder
from .noise_scale import log_scale_from
from .observations import Observations
from .posterior import ModelPosterior
from .priors import LogGammaPrior
from .regression import Shared, regression_posterior
from .starts import StartingPoint, robust_regression
from .student_t_bound import StudentTCubicBound

_START_DEGREES = 10.0


class StudentT(AbstractLikelihood):
    """y ~ t_ν(z, σ); z = (location, log σ, log ν)."""

    @property
    def n_predictors(self) -> int:
        return 1

    @property
    def n_shared(self) -> int:
        return 2

    @property
    def log_concave(self) -> bool:
        return False

    def row_potential(self, z: Float[Array, " 3"], y: Float[Array, ""]) -> Float[Array, ""]:
        location, log_scale, log_degrees = z
        degrees = jnp.exp(log_degrees)
        squares = ((y - location) * jnp.exp(-log_scale)) ** 2
        spread = 0.5 * (degrees + 1) * jnp.log1p(squares / degrees)
        half = 0.5 * degrees
        remainders = stirling_remainder(half) - stirling_remainder(half + 0.5)
        return log_scale + spread + 0.5 - half * jnp.log1p(1 / degrees) + remainders

    def largest_curvature(self) -> None:
        return None

    @property
    def cubic_bound(self) -> StudentTCubicBound:
        return StudentTCubicBound()

    def starting_point(self, rows: Observations) -> StartingPoint | None:
        beta, scale = robust_regression(rows)
        if scale == 0:
            return None
        return StartingPoint(beta, (math.log(scale), math.log(_START_DEGREES)))

    def constant(self, y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.full_like(y, 0.5 * math.log(2 * math.pi))

    def mean(self, z: Float[Array, "n 3"]) -> Float[Array, " n"]:
        return z[:, 0]

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 3"]) -> Float[Array, " n"]:
        noise = jax.random.t(key, jnp.exp(z[:, 2]), z.shape[:1], z.dtype)
        return z[:, 0] + jnp.exp(z[:, 1]) * noise


def student_t_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    *,
    response: str | None = None,
    weights: ArrayLike | str | None = None,
    offset: ArrayLike | str | None = None,
) -> ModelPosterior:
    """Bayesian robust regression, y_i ~ t_ν(x_iᵀβ, σ), β_j ~ N(0, prior_variance).

    log σ ~ N(log sd(y), 3²) and ν ~ Gamma(2, 0.1).

    **Arguments:**

    - `X`: the design matrix, with its own intercept column, as an array or a data frame; or the
      rows of a row store, from `tallmc.rows.open`.
    - `y`: one number per row.
    - `prior_variance`: a number, or one per column.
    - `response`: the name of the response, if X is a row store; then there is no `y`.
    - `weights`: how many times each row counts; for a row store the name of a column.
    - `offset`: a number per row that is added to its predictor; for a row store the name of a
      column.

    **Returns:** a posterior with the parameters `beta`, `log_scale` and `log_degrees`.

    **Raises:** `InvalidInput` if X or y is not finite, or all y are equal.

    >>> X, y = [[1.0], [1.0], [1.0], [1.0]], [1.0, 3.0, 2.0, 50.0]
    >>> student_t_regression(X, y, prior_variance=1e4).layout.names
    ('beta', 'log_scale', 'log_degrees')
    """
    data = regression_data(X, y, response, weights, offset)
    prior = normal_prior(prior_variance, data)
    return regression_posterior(data, StudentT(), prior, shared=scale_and_degrees(data))


def scale_and_degrees(data: RegressionData) -> list[Shared]:
    """log σ and log ν where the search for the mode starts, and their priors."""
    if data.y_sd == 0:
        raise InvalidInput("y", "vary", "equal values")
    of_degrees = LogGammaPrior(jnp.asarray(2.0, data.dtype), jnp.asarray(0.1, data.dtype))
    return [
        log_scale_from(data, data.y_sd),
        Shared("log_degrees", np.log(_START_DEGREES), of_degrees),
    ]
