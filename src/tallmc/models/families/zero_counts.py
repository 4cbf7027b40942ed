"""Counts with more or fewer zeros than a Poisson or negative binomial law has, with log link.

    zero-inflated   P(0) = π + (1 − π) p(0),   P(y) = (1 − π) p(y)
    hurdle          P(0) = π,                  P(y) = (1 − π) p(y)/(1 − p(0)),   y > 0

p is the law of the counts with the mean μ = e^z. The last shared parameter is logit π. The
potential of a base law at y = 0 is −log p(0), because its constant vanishes there.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..._core.arrays import Scalar
from ..._rows.access import PerRow
from ..design import Observations, RegressionData
from ..likelihood import AbstractLikelihood, StartingPoint, least_squares, row_weights, softplus
from ..regression import Family, Shared
from . import negative_binomial
from .negative_binomial import NegativeBinomial
from .ordinal import CutPointPrior
from .poisson import Poisson, count_constant


class AbstractZeroCounts(AbstractLikelihood):
    """z = (log μ, the shared parameters of the base law, logit π)."""

    base: Poisson | NegativeBinomial

    response = "count"

    @property
    def n_shared(self) -> int:
        return self.base.n_shared + 1

    def of_base(self, z: Float[Array, " k"], y: Scalar) -> Scalar:
        """The potential of the base law."""
        if self.base.elementwise:
            return self.base.potential(z[:1], y[None])[0]
        return self.base.potential(z[:-1], y)

    def starting_point(self, block: Observations) -> StartingPoint:
        # The positive counts alone, of which those near zero are missing, but not the inflated.
        weights, y = row_weights(block), np.asarray(block.y)
        positive = y > 0
        zeros = np.clip(np.average(~positive, weights=weights), 0.01, 0.99)
        beta, _ = least_squares(block, np.log(np.maximum(y, 0.5)), weights * positive)
        shared = (0.0,) * self.base.n_shared
        return StartingPoint(beta, (*shared, float(np.log(zeros / (1 - zeros)))))

    def constant(self, y: PerRow, trials: Any = None) -> PerRow:
        return count_constant(y)

    def _chance_of_zero(self, z: Float[Array, "n k"]) -> PerRow:
        """p(0)."""
        zero = jnp.zeros((), z.dtype)
        return jnp.exp(-jax.vmap(lambda row: self.of_base(row, zero))(z))


class ZeroInflated(AbstractZeroCounts):
    """A share π of the rows has zeros of another origin."""

    def potential(self, z: Float[Array, " k"], y: Scalar) -> Scalar:
        found, logit = self.of_base(z, y), z[-1]
        zero = -jnp.logaddexp(logit, -jnp.where(y > 0, 0.0, found))
        return softplus(logit) + jnp.where(y > 0, found, zero)

    def mean(self, z: Float[Array, "n k"]) -> PerRow:
        return jax.nn.sigmoid(-z[:, -1]) * jnp.exp(z[:, 0])

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n k"], trials: Any = None) -> PerRow:
        of_zero, of_count = jax.random.split(key)
        counts = self.base.simulate(of_count, z[:, 0] if self.base.elementwise else z[:, :-1])
        return jnp.where(jax.random.bernoulli(of_zero, jax.nn.sigmoid(z[:, -1])), 0, counts)


class Hurdle(AbstractZeroCounts):
    """A share π of the rows is zero, and the others have positive counts."""

    def potential(self, z: Float[Array, " k"], y: Scalar) -> Scalar:
        logit, at_zero = z[-1], self.of_base(z, jnp.zeros_like(y))
        positive = self.of_base(z, y) + jnp.log(-jnp.expm1(-at_zero))
        return softplus(logit) + jnp.where(y > 0, positive, -logit)

    def mean(self, z: Float[Array, "n k"]) -> PerRow:
        return jax.nn.sigmoid(-z[:, -1]) * jnp.exp(z[:, 0]) / (1 - self._chance_of_zero(z))

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n k"], trials: Any = None) -> PerRow:
        # A positive count has a first arrival, at the time τ < 1 of a process with p(0) = P(τ > 1).
        # The arrivals after it are those of the base law, given τ.
        of_zero, of_first, of_rate, of_rest = jax.random.split(key, 4)
        mean = jnp.exp(z[:, 0])
        u = jax.random.uniform(of_first, z.shape[:1], z.dtype)
        none = 1 - u * (1 - self._chance_of_zero(z))  # P(no arrival before τ)
        if self.base.elementwise:
            first, rate = -jnp.log(none) / mean, mean
        else:  # (1 + αμτ)^{−1/α}, and a rate of shape 1/α + 1
            dispersion = jnp.exp(z[:, 1])
            scale = dispersion * mean
            first = jnp.expm1(-dispersion * jnp.log(none)) / scale
            gamma = jax.random.gamma(of_rate, 1 / dispersion + 1, dtype=z.dtype)
            rate = gamma * scale / (1 + scale * first)
        rest = jax.random.poisson(of_rest, rate * jnp.clip(1 - first, 0, 1)).astype(z.dtype)
        return jnp.where(jax.random.bernoulli(of_zero, jax.nn.sigmoid(z[:, -1])), 0, 1 + rest)


def _family(name: str, kind: Any, base: Any, shown: str, other_name: str) -> Family:
    parameter = {"zi": "logit_zero_inflation", "hu": "logit_hurdle"}[shown]
    of_base = negative_binomial.FAMILY if isinstance(base, NegativeBinomial) else None

    def shared(data: RegressionData, classes: int) -> list[Shared]:
        found = [] if of_base is None else list(of_base.shared(data, classes))
        return [*found, Shared(parameter, 0.0, CutPointPrior())]

    return Family(
        name,
        links=("log",),
        likelihood=lambda link, classes, noise: kind(base),
        shared=shared,
        shared_prior={**({} if of_base is None else of_base.shared_prior), shown: "uniform"},
        other_names=(other_name,),
    )


FAMILIES = (
    _family("zero_inflated_poisson", ZeroInflated, Poisson(), "zi", "zip"),
    _family("zero_inflated_negative_binomial", ZeroInflated, NegativeBinomial(), "zi", "zinb"),
    _family("hurdle_poisson", Hurdle, Poisson(), "hu", "hurdlepoisson"),
    _family("hurdle_negative_binomial", Hurdle, NegativeBinomial(), "hu", "hurdlenb"),
)
