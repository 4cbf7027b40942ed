"""Survival times with censoring and truncation: accelerated failure times, piecewise hazards.

    f = −log p(T = t)            the event was seen at t
      = H(l) − log(1 − e^{−(H(u) − H(l))})   it happened between l and u; u = ∞: right-censored

H = −log P(T > t) is the cumulative hazard. A row that entered at time a > 0 was seen only because
T > a, so H(a) is subtracted. The response of a row is (log a, log l, log u), with l = u for an
event and a = 0 for no truncation.

    log T = z + σε     exponential (σ = 1), weibull: P(ε > w) = exp(−e^w); lognormal; loglogistic
    h(t) = λ_j e^z     piecewise_exponential: for t in interval j, proportional hazards

Shared parameters are log σ, and all log λ_j. There is no intercept beside the λ_j.
"""

from __future__ import annotations

import abc
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, log_ndtr, ndtr
from jaxtyping import Array, Float, PRNGKeyArray

from ..._core.arrays import Scalar
from ..._rows.access import PerRow
from ..design import Observations, RegressionData
from ..likelihood import AbstractLikelihood, StartingPoint, least_squares, row_weights, softplus
from ..priors import NormalPrior
from ..regression import Family, Shared

_LOG_SD = 3.0
"""Prior sd of log σ, and of the log λ_j in units of the mean time."""
_LEAST_SCALE = 0.3


class AbstractSurvival(AbstractLikelihood):
    """Times given by their cumulative hazard."""

    response = "times"
    comparable = False

    @abc.abstractmethod
    def hazard(self, z: Float[Array, " k"], log_time: Scalar) -> Scalar:
        """H(t)."""

    @abc.abstractmethod
    def event(self, z: Float[Array, " k"], log_time: Scalar) -> Scalar:
        """−log p(T = t), less a function of t."""

    def potential(self, z: Float[Array, " k"], y: Float[Array, " 3"]) -> Scalar:
        # Branches that are not chosen get harmless arguments: their derivatives stay finite.
        entry, lower, upper = y
        has_lower, has_entry = jnp.isfinite(lower), jnp.isfinite(entry)
        is_event = lower == upper
        is_interval = jnp.isfinite(upper) & ~is_event
        time = jnp.where(has_lower, lower, upper)
        survived = jnp.where(has_lower, self.hazard(z, time), 0)
        gap = self.hazard(z, jnp.where(is_interval, upper, time + 1)) - survived
        within = jnp.log(-jnp.expm1(-jnp.where(is_interval, gap, 1)))
        before = jnp.where(has_entry, self.hazard(z, jnp.where(has_entry, entry, time)), 0)
        censored = survived - jnp.where(is_interval, within, 0)
        return jnp.where(is_event, self.event(z, time), censored) - before

    def is_density(self, y: Float[Array, "n 3"]) -> PerRow:
        return (y[:, 1] == y[:, 2]).astype(y.dtype)

    def survival(
        self, z: Float[Array, "n k"], log_times: Float[Array, " t"]
    ) -> Float[Array, "n t"]:
        of_times = jax.vmap(self.hazard, in_axes=(None, 0))
        return jnp.exp(-jax.vmap(of_times, in_axes=(0, None))(z, log_times))


class AbstractFailureTime(AbstractSurvival):
    """log T = z + σε; z = (z, log σ)."""

    normalisation = 0.0
    """The constant of −log p(ε)."""
    n_shared = 1

    @abc.abstractmethod
    def hazard_of(self, w: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """−log P(ε > w)."""

    @abc.abstractmethod
    def event_of(self, w: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """−log p(ε = w), without its constant."""

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray, like: PerRow) -> PerRow:
        """A draw of ε per row."""

    def hazard(self, z: Float[Array, " k"], log_time: Scalar) -> Scalar:
        return self.hazard_of((log_time - z[0]) * jnp.exp(-self._log_scale(z)))

    def event(self, z: Float[Array, " k"], log_time: Scalar) -> Scalar:
        log_scale = self._log_scale(z)
        return self.event_of((log_time - z[0]) * jnp.exp(-log_scale)) + log_scale

    def constant(self, y: Float[Array, "n 3"], trials: Any = None) -> PerRow:
        is_event = y[:, 1] == y[:, 2]
        return jnp.where(is_event, self.normalisation + y[:, 1], 0)

    def starting_point(self, block: Observations) -> StartingPoint:
        _, lower, upper = np.asarray(block.y).T
        weights = row_weights(block)
        beta, residuals = least_squares(block, np.where(np.isfinite(lower), lower, upper), weights)
        scale = math.sqrt(np.average(residuals**2, weights=weights))
        return StartingPoint(beta, (math.log(max(scale, _LEAST_SCALE)),))

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n k"], trials: Any = None) -> PerRow:
        scale = jnp.exp(self._log_scale(z.T))
        return jnp.exp(z[:, 0] + scale * self.noise(key, z[:, 0]))

    def median(self, z: Float[Array, "n k"]) -> PerRow:
        return jnp.exp(z[:, 0])

    def _log_scale(self, z: Float[Array, "k ..."]) -> Float[Array, ...]:
        return z[1]


class AbstractWeibull(AbstractFailureTime):
    """P(ε > w) = exp(−e^w)."""

    def hazard_of(self, w: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jnp.exp(w)

    def event_of(self, w: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jnp.exp(w) - w

    def noise(self, key: PRNGKeyArray, like: PerRow) -> PerRow:
        return -jax.random.gumbel(key, like.shape, like.dtype)

    def mean(self, z: Float[Array, "n k"]) -> PerRow:
        return jnp.exp(z[:, 0] + gammaln(1 + jnp.exp(self._log_scale(z.T))))

    def median(self, z: Float[Array, "n k"]) -> PerRow:
        scale = jnp.exp(self._log_scale(z.T))
        return jnp.exp(z[:, 0] + scale * math.log(math.log(2)))


class Weibull(AbstractWeibull):
    """P(T > t) = exp(−(t e^{−z})^{1/σ})."""


class Exponential(AbstractWeibull):
    """P(T > t) = exp(−t e^{−z})."""

    n_shared = 0

    def _log_scale(self, z: Float[Array, "k ..."]) -> Float[Array, ...]:
        return jnp.zeros_like(z[0])


class LogNormal(AbstractFailureTime):
    """log T ~ N(z, σ²)."""

    normalisation = 0.5 * math.log(2 * math.pi)

    def hazard_of(self, w: Float[Array, "*n"]) -> Float[Array, "*n"]:
        # log Φ(−w) is rounded where it is small, and an interval there needs all its digits.
        is_early = w < 0
        early = -jnp.log1p(-ndtr(jnp.where(is_early, w, 0)))
        return jnp.where(is_early, early, -log_ndtr(-jnp.where(is_early, 0, w)))

    def event_of(self, w: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return 0.5 * w**2

    def noise(self, key: PRNGKeyArray, like: PerRow) -> PerRow:
        return jax.random.normal(key, like.shape, like.dtype)

    def mean(self, z: Float[Array, "n 2"]) -> PerRow:
        return jnp.exp(z[:, 0] + 0.5 * jnp.exp(2 * z[:, 1]))


class LogLogistic(AbstractFailureTime):
    """P(T > t) = 1/(1 + (t e^{−z})^{1/σ}). The mean is infinite for σ ≥ 1."""

    def hazard_of(self, w: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return softplus(w)

    def event_of(self, w: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return softplus(w) + softplus(-w)

    def noise(self, key: PRNGKeyArray, like: PerRow) -> PerRow:
        return jax.random.logistic(key, like.shape, like.dtype)

    def mean(self, z: Float[Array, "n 2"]) -> PerRow:
        angle = jnp.pi * jnp.exp(z[:, 1])
        return jnp.where(angle < jnp.pi, jnp.exp(z[:, 0]) * angle / jnp.sin(angle), jnp.inf)


class PiecewiseExponential(AbstractSurvival):
    """h(t) = λ_j e^z between two breaks; z = (z, log λ₁, …, log λ_J)."""

    breaks: Float[Array, " j"]
    """The times between intervals, in the units of the rows. A break belongs to the one before."""

    @property
    def n_shared(self) -> int:
        return len(self.breaks) + 1

    @property
    def _starts(self) -> Float[Array, " J"]:
        return jnp.concatenate([jnp.zeros(1, self.breaks.dtype), self.breaks])

    def _hazards(self, z: Float[Array, " k"], log_time: Scalar) -> Float[Array, " J"]:
        """The parts of H(t) from each interval."""
        widths = jnp.append(jnp.diff(self._starts), jnp.inf)
        exposure = jnp.clip(jnp.exp(log_time) - self._starts, 0, widths)
        return exposure * jnp.exp(z[1:] + z[0])

    def hazard(self, z: Float[Array, " k"], log_time: Scalar) -> Scalar:
        return jnp.sum(self._hazards(z, log_time))

    def event(self, z: Float[Array, " k"], log_time: Scalar) -> Scalar:
        place = jnp.sum(log_time > jnp.log(self.breaks))
        own = jnp.sum(jnp.where(jnp.arange(self.n_shared) == place, z[1:], 0))
        return self.hazard(z, log_time) - own - z[0]

    def constant(self, y: Float[Array, "n 3"], trials: Any = None) -> PerRow:
        return jnp.zeros_like(y[:, 0])

    def starting_point(self, block: Observations) -> StartingPoint:
        # Events per time at risk in each interval.
        entry, lower, upper = np.exp(np.asarray(block.y)).T
        time = np.where(lower > 0, lower, upper)
        starts = np.asarray(self._starts, np.float64)
        ends = np.append(starts[1:], np.inf)
        weights, of = row_weights(block), np.isfinite(upper)
        hazards = []
        for start, end in zip(starts, ends, strict=True):
            at_risk = weights @ (np.clip(time, start, end) - np.clip(entry, start, end))
            events = weights @ (of & (time > start) & (time <= end))
            hazards.append((events + 0.5) / (at_risk + 0.5 * np.mean(time)))
        return StartingPoint(np.zeros(block.x.shape[1]), (np.log(hazards),))

    def mean(self, z: Float[Array, "n k"]) -> PerRow:
        at_starts = self.survival(z, jnp.log(self._starts))
        at_ends = jnp.pad(at_starts[:, 1:], ((0, 0), (0, 1)))
        return jnp.sum((at_starts - at_ends) * jnp.exp(-z[:, :1] - z[:, 1:]), axis=1)

    def median(self, z: Float[Array, "n k"]) -> PerRow:
        return jax.vmap(lambda row: self._time(row, jnp.log(jnp.asarray(2.0, row.dtype))))(z)

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n k"], trials: Any = None) -> PerRow:
        hazards = jax.random.exponential(key, z.shape[:1], z.dtype)
        return jax.vmap(self._time)(z, hazards)

    def _time(self, z: Float[Array, " k"], hazard: Scalar) -> Scalar:
        """The time at which H(t) has this value."""
        starts, rates = self._starts, jnp.exp(z[1:] + z[0])
        before = jnp.append(0.0, jnp.cumsum(jnp.diff(starts) * rates[:-1]))
        place = jnp.sum(before <= hazard) - 1
        return starts[place] + (hazard - before[place]) / rates[place]


def _shared(data: RegressionData, classes: int) -> list[Shared]:
    variance = jnp.asarray(_LOG_SD**2, data.dtype)
    return [Shared("log_scale", 0.0, NormalPrior(variance))]


def _hazards(data: RegressionData, intervals: int) -> list[Shared]:
    variance = jnp.asarray(_LOG_SD**2, data.dtype)
    return [Shared("log_hazards", np.zeros(intervals), NormalPrior(variance))]


_SIGMA = {"sigma": "log-normal: log sigma has mean 0 and sd 3"}
FAMILIES = (
    Family("exponential", ("log",), lambda link, classes, known: Exponential()),
    Family("weibull", ("log",), lambda link, classes, known: Weibull(), _shared, _SIGMA),
    Family("lognormal", ("log",), lambda link, classes, known: LogNormal(), _shared, _SIGMA),
    Family("loglogistic", ("log",), lambda link, classes, known: LogLogistic(), _shared, _SIGMA),
    Family(
        "piecewise_exponential",
        ("log",),
        lambda link, classes, breaks: PiecewiseExponential(
            jnp.zeros(classes - 1) if breaks is None else breaks
        ),
        _hazards,
        {"hazard": "log-normal: its log has mean -log mean(time) and sd 3"},
        has_intercept=False,
        other_names=("piecewiseexponential", "pwe"),
    ),
)
