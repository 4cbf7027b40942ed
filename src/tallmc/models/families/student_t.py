"""Robust regression: y ~ t_ν(z, σ) with unknown scale and degrees of freedom.

    u = (y − z)/σ,   f = log σ + (ν + 1)/2 · log(1 + u²/ν) + log B(1/2, ν/2) + (log ν)/2
    log B(1/2, h) + (log 2h)/2 = ½ log 2π + ½ − h log(1 + 1/2h) + δ(h) − δ(h + ½)

The second form has no large terms that nearly cancel; δ is Stirling's remainder (`likelihood.py`).
The shared parameters are log σ and log ν.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..._core.arrays import Matrix, Scalar, dot
from ..._core.errors import InvalidInput
from ..._rows.access import PerRow
from ..._rows.sharded import ShardedRows
from ..design import Observations, RegressionData
from ..likelihood import (
    AbstractLikelihood,
    Predictors,
    StartingPoint,
    largest_between,
    robust_regression,
    stirling_remainder,
)
from ..posterior import ModelPosterior
from ..priors import LogGammaPrior
from ..regression import Family, Shared
from .gaussian import LOG_SCALE_PRIOR, log_scale_from

# Third derivatives of Student's t likelihood, in location z, s = log σ and λ = log ν.
#
#     f = s + ½(ν + 1) L(v) + g(λ),   L(v) = log(1 + v²),   v = (y − z) e^{−s−λ/2}
#
# Along the direction (a, b, c), with α = a e^{−s−λ/2} and β = b + c/2: v' = −(α + βv), α' = −βα. So
#
#     L'   = −(α C₁₀ + β C₀₁)
#     L''  = α² B₂₀ + αβ B₁₁ + β² B₀₂
#     L''' = −(α³ A₃₀ + α²β A₂₁ + αβ² A₁₂ + β³ A₀₃)
#
#     C₁₀ = 2v/(1+x)            C₀₁ = 2x/(1+x)
#     B₂₀ = 2(1−x)/(1+x)²       B₁₁ = 8v/(1+x)²             B₀₂ = 4x/(1+x)²
#     A₃₀ = 4v(x−3)/(1+x)³      A₂₁ = 12(1−3x)/(1+x)³
#     A₁₂ = 24v(1−x)/(1+x)³     A₀₃ = 8x(1−x)/(1+x)³        x = v²
#
# With (ν + 1)''' = c³ν and so on, the third derivative of f is
#
#     ½(ν + 1) L''' + ½ν (3c L'' + 3c² L' + c³ L) + c³ g'''(λ).
#
# Each term is bounded by its largest value for |z|, |s| and |λ| within their reaches. The functions
# of v are monotone between known turning points. ν^{1−k/2} + ν^{−k/2} is convex in λ, so it is
# largest at an end. |g'''| < 0.0592 for all ν. Beyond all reaches σ tends to 0, and there is no
# bound.

_LARGEST_NORMALISATION = 0.0592
"""sup |g'''|."""


_Term = tuple[Callable[[Array], Array], tuple[float, ...]]
"""A function of |v|, and the |v| at which it turns."""

_FIRST: dict[tuple[int, int], _Term] = {
    (1, 0): (lambda v: 2 * v / (1 + v**2), (1.0,)),
    (0, 1): (lambda v: 2 * v**2 / (1 + v**2), ()),
}
_SECOND: dict[tuple[int, int], _Term] = {
    (2, 0): (lambda v: 2 * (1 - v**2) / (1 + v**2) ** 2, (math.sqrt(3),)),
    (1, 1): (lambda v: 8 * v / (1 + v**2) ** 2, (math.sqrt(1 / 3),)),
    (0, 2): (lambda v: 4 * v**2 / (1 + v**2) ** 2, (1.0,)),
}
_THIRD: dict[tuple[int, int], _Term] = {
    (3, 0): (lambda v: 4 * v * (v**2 - 3) / (1 + v**2) ** 3, (math.sqrt(2) - 1, math.sqrt(2) + 1)),
    (2, 1): (lambda v: 12 * (1 - 3 * v**2) / (1 + v**2) ** 3, (1.0,)),
    (1, 2): (
        lambda v: 24 * v * (1 - v**2) / (1 + v**2) ** 3,
        (math.sqrt((4 - math.sqrt(13)) / 3), math.sqrt((4 + math.sqrt(13)) / 3)),
    ),
    (0, 3): (
        lambda v: 8 * v**2 * (1 - v**2) / (1 + v**2) ** 3,
        (math.sqrt(2 - math.sqrt(3)), math.sqrt(2 + math.sqrt(3))),
    ),
}


_START_DEGREES = 10.0


class StudentT(AbstractLikelihood):
    """y ~ t_ν(z, σ); z = (location, log σ, log ν)."""

    n_shared = 2

    def potential(self, z: Float[Array, " 3"], y: Scalar) -> Scalar:
        location, log_scale, log_degrees = z
        degrees = jnp.exp(log_degrees)
        squares = ((y - location) * jnp.exp(-log_scale)) ** 2
        spread = 0.5 * (degrees + 1) * jnp.log1p(squares / degrees)
        half = 0.5 * degrees
        remainders = stirling_remainder(half) - stirling_remainder(half + 0.5)
        return log_scale + spread + 0.5 - half * jnp.log1p(1 / degrees) + remainders

    def bounded(self, order: int) -> bool | None:
        return False if order == 3 else None

    def largest_cubic(self, z: Predictors, reach: Predictors, gram: Matrix, y: Scalar) -> Scalar:
        location, log_scale, log_degrees = z
        shrink = jnp.exp(-log_scale - log_degrees / 2)
        slack = jnp.exp(reach[1] + reach[2] / 2)
        miss = jnp.abs(y - location)
        low = jnp.maximum(miss - reach[0], 0) * shrink / slack
        high = (miss + reach[0]) * shrink * slack
        a, b, c = jnp.eye(3, dtype=z.dtype)
        of_location = _size_along(gram, a) * jnp.exp(-log_scale + reach[1])
        of_scale, of_degrees = _size_along(gram, b + c / 2), _size_along(gram, c)
        ends = jnp.exp(jnp.stack([log_degrees - reach[2], log_degrees + reach[2]]))

        def total(terms: dict[tuple[int, int], _Term], extra: float) -> Scalar:
            """Σ of the largest (ν + extra) ν^{−j/2} |term| |a/σ|ʲ |β|ᵏ."""
            found = jnp.zeros_like(y)
            for (j, k), (function, turns) in terms.items():
                degrees = jnp.max((ends + extra) * ends ** (-j / 2))
                size = of_location**j * of_scale**k
                found += degrees * size * largest_between(function, low, high, turns)
            return found

        within = total(_THIRD, 1) + of_degrees * (
            3 * total(_SECOND, 0) + of_degrees * 3 * total(_FIRST, 0)
        )
        logarithm = jnp.max(ends) * jnp.log1p(high**2) + 2 * _LARGEST_NORMALISATION
        found = (within + of_degrees**3 * logarithm) / 2
        return jnp.where(jnp.all(jnp.isfinite(reach)), found, jnp.inf)

    def distance(self, z: Float[Array, " 3"], move: Float[Array, " 3"]) -> Scalar:
        units = jnp.stack([jnp.exp(-z[1] - jnp.minimum(z[2], 0) / 2), 1.0, 1.0])
        return jnp.max(jnp.abs(units * move))

    def starting_point(self, block: Observations) -> StartingPoint | None:
        beta, scale = robust_regression(block)
        if scale == 0:
            return None
        return StartingPoint(beta, (math.log(scale), math.log(_START_DEGREES)))

    def constant(self, y: PerRow, trials: Any = None) -> PerRow:
        return jnp.full_like(y, 0.5 * math.log(2 * math.pi))

    def mean(self, z: Float[Array, "n 3"]) -> PerRow:
        return z[:, 0]

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 3"], trials: Any = None) -> PerRow:
        noise = jax.random.t(key, jnp.exp(z[:, 2]), z.shape[:1], z.dtype)
        return z[:, 0] + jnp.exp(z[:, 1]) * noise


def _size_along(gram: Float[Array, "k k"], weights: Float[Array, " k"]) -> Scalar:
    """The largest |weights · Ju| with ‖u‖ ≤ 1, from JJᵀ."""
    return jnp.sqrt(jnp.maximum(dot(dot(weights, gram), weights), 0))


def _shared(data: RegressionData, classes: int) -> list[Shared]:
    if data.y_sd == 0:
        raise InvalidInput("y", "vary", "equal values")
    of_degrees = LogGammaPrior(jnp.asarray(2.0, data.dtype), jnp.asarray(0.1, data.dtype))
    degrees = Shared("log_degrees", np.log(_START_DEGREES), of_degrees)
    return [log_scale_from(data, data.y_sd), degrees]


FAMILY = Family(
    "student_t",
    links=("identity",),
    likelihood=lambda link, classes, noise: StudentT(),
    shared=_shared,
    shared_prior={"sigma": LOG_SCALE_PRIOR, "nu": "Gamma(2, 0.1)"},
    other_names=("t", "studentt", "robust"),
)


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

    **Arguments:** those of `logistic_regression`; `y` is a number per row.

    **Returns:** a posterior with the parameters `beta`, `log_scale` and `log_degrees`.
    """
    return FAMILY.regression(X, y, prior_variance, response, weights, offset)
