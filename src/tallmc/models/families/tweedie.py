"""Tweedie regression with log link: zeros and positive numbers, E y = μ = e^z, Var y = φ μ^p.

A Poisson number j of gamma variables, 1 < p < 2 (Dunn and Smyth, 2005). With α = (2 − p)/(p − 1),
r = log(μ/y) and the number c = y^{2−p}/(φ(2 − p)) that y suggests,

    −log P(y = 0) = μ^{2−p}/(φ(2 − p))
    −log p(y) = c[e^{(2−p)r} − 1 − (2 − p)r] + cα[e^{−(p−1)r} − 1 + (p − 1)r] + log(2πy/√α)
                − log Σ_{j≥1} exp[−(1 + α)D_j − δ(j) − δ(jα)],   D_j = j log(j/c) − j + c

δ is the remainder of Stirling's formula. No part is large where p(y) is not small, so that third
derivatives are exact in float32, too. 45 terms around c are added: all integers there as long as
the terms have an sd below 4, otherwise points 0.25 sds apart, since sums of such smooth terms are
integrals. log p(y) is exact to 1e-6. Derivatives of the sum are cumulants, from the same terms.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from ..._core.arrays import Scalar, dot
from ..._rows.access import PerRow
from ..design import Observations, RegressionData
from ..likelihood import (
    AbstractLikelihood,
    StartingPoint,
    least_squares,
    remainder_derivative,
    row_weights,
    stirling_remainder,
)
from ..predictive import response_rule
from ..priors import NormalPrior
from ..regression import Family, Shared

_TERMS = 22  # on either side
_STEP = 0.25
_LEAST_CENTRE = 1e-3
_LOG_DISPERSION_SD, _LOGIT_POWER_SD = 5.0, 1.5
_START_POWER = 1.5


def _cumulants(
    order: int, tilt: Scalar, shape: Scalar, j: Float[Array, " t"], centre: Scalar
) -> Float[Array, " n"]:
    """The derivatives of `_log_sum` of an order up to 3: 0, 1, … times in α, otherwise in tilt."""
    u = j - centre
    deviance = j * jnp.log1p(u / centre) - u
    terms = u * tilt - (1 + shape) * deviance
    terms -= stirling_remainder(j) + stirling_remainder(j * shape)
    if order == 0:
        return jax.nn.logsumexp(terms)[None]
    weights = jax.nn.softmax(terms)
    bends = [-(j**k) * remainder_derivative(k, j * shape) for k in range(1, order + 1)]
    bends[0] -= deviance
    if order > 1:
        # Derivatives of log E e^A, A = us + Σ b_k tᵏ/k!. Centred, these two orders are moments.
        u, bends[0] = (each - dot(weights, each) for each in (u, bends[0]))
    moments = [jnp.ones_like(j)]
    for n in range(order):
        pairs = zip(reversed(moments), bends, strict=False)
        each = [math.comb(n, k) * a * b for k, (a, b) in enumerate(pairs)]
        moments.append(sum(each[1:], each[0]))
    powers = (u ** (order - n) * moment for n, moment in enumerate(moments))
    return jnp.stack([dot(weights, each) for each in powers])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _log_sum(
    order: int, tilt: Scalar, shape: Scalar, j: Float[Array, " t"], centre: Scalar
) -> Float[Array, " n"]:
    """log Σ_j exp[(j − c)·tilt − (1 + α)D_j − δ(j) − δ(jα)], or its derivatives of an order."""
    return _cumulants(order, tilt, shape, j, centre)


@_log_sum.defjvp
def _log_sum_jvp(
    order: int, primals: tuple[Array, ...], tangents: tuple[Array, ...]
) -> tuple[Array, Array]:
    found = (_log_sum if order < 2 else _cumulants)(order + 1, *primals)
    return _log_sum(order, *primals), found[:-1] * tangents[0] + found[1:] * tangents[1]


class Tweedie(AbstractLikelihood):
    """z = (log μ, log φ, logit(p − 1))."""

    response = "nonnegative"
    row_cost = 16  # what 45 terms take, in likelihoods of a count

    n_shared = 2

    def potential(self, z: Float[Array, " 3"], y: Scalar) -> Scalar:
        log_mean, log_dispersion, logit = z
        above, below = jax.nn.sigmoid(logit), jax.nn.sigmoid(-logit)  # p − 1 and 2 − p
        positive = y > 0
        log_y = jnp.log(jnp.where(positive, y, 1))
        shape = below / above
        log_number = below * log_y - log_dispersion - jnp.log(below)
        ratio = log_mean - log_y
        up, down = below * ratio, -above * ratio
        deviance = jnp.exp(log_number) * (jnp.expm1(up) - up + shape * (jnp.expm1(down) - down))
        found = deviance + log_y + math.log(2 * math.pi) - jnp.log(shape) / 2
        found -= self._log_series(log_number, shape)
        zero = jnp.exp(below * log_mean - log_dispersion) / below
        return jnp.where(positive, found, zero)

    def _log_series(self, log_number: Scalar, shape: Scalar) -> Scalar:
        """log Σ_j exp[−(1 + α)D_j − δ(j) − δ(jα)]."""
        # Where the terms are is no part of the derivatives: the sum does not depend on it.
        centre = lax.stop_gradient(jnp.maximum(jnp.exp(log_number), _LEAST_CENTRE))
        width = jnp.sqrt(centre / (1 + lax.stop_gradient(shape)))
        step = jnp.maximum(1.0, _STEP * width)
        first = jnp.maximum(jnp.round(centre) - _TERMS * step, 1.0)
        j = first + step * jnp.arange(2 * _TERMS + 1, dtype=log_number.dtype)
        # D_j about the centre is linear in x = log(c/centre), but for a part without j.
        x = log_number - jnp.log(centre)
        rest = (1 + shape) * centre * (jnp.expm1(x) - x)
        return _log_sum(0, (1 + shape) * x, shape, j, centre)[0] + jnp.log(step) - rest

    def starting_point(self, block: Observations) -> StartingPoint:
        weights, y = row_weights(block), np.asarray(block.y)
        level = np.average(y, weights=weights)
        beta, _ = least_squares(block, np.log(y + 0.1 * level), weights)
        squares = np.average((y - level) ** 2, weights=weights)
        return StartingPoint(beta, (math.log(squares / level**_START_POWER), 0.0))

    def mean(self, z: Float[Array, "n 3"]) -> PerRow:
        return jnp.exp(z[:, 0])

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 3"], trials: Any = None) -> PerRow:
        of_number, of_size = jax.random.split(key)
        above, below = jax.nn.sigmoid(z[:, 2]), jax.nn.sigmoid(-z[:, 2])
        rate = jnp.exp(below * z[:, 0] - z[:, 1]) / below
        number = jax.random.poisson(of_number, rate).astype(z.dtype)
        scale = jnp.exp(z[:, 1] + above * z[:, 0]) * above
        shape = jnp.maximum(number, 1) * below / above
        size = jax.random.gamma(of_size, shape, dtype=z.dtype) * scale
        return jnp.where(number > 0, size, 0)


def _shared(data: RegressionData, classes: int) -> list[Shared]:
    data.check_response(*response_rule("nonnegative", 0), whole=False)
    sds = {"log_phi": _LOG_DISPERSION_SD, "logit_power": _LOGIT_POWER_SD}
    return [
        Shared(name, 0.0, NormalPrior(jnp.asarray(sd**2, data.dtype))) for name, sd in sds.items()
    ]


FAMILY = Family(
    "tweedie",
    links=("log",),
    likelihood=lambda link, classes, noise: Tweedie(),
    shared=_shared,
    shared_prior={
        "phi": "log-normal: log phi has mean 0 and sd 5",
        "power": "between 1 and 2: logit(power - 1) has mean 0 and sd 1.5",
    },
)
