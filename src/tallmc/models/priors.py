"""Priors of parameter vectors, as potentials −log p(θ) up to a constant.

Scale parameters lie in a position as logarithms. Their priors here are densities of s = log σ, with
the Jacobian: −log p(s) = −log p_σ(eˢ) − s.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.arrays import Scalar, Vector


class AbstractPrior(eqx.Module):
    """A prior of a vector."""

    @property
    @abc.abstractmethod
    def log_concave(self) -> bool:
        """Whether the potential is convex."""

    @abc.abstractmethod
    def potential(self, values: Vector) -> Scalar:
        """−log p(θ), up to a constant."""

    def log_integral(self, count: int) -> float | None:
        """The constant, log ∫ exp(−potential), of `count` values; None if it is not known."""
        return None

    def sample(
        self, random: np.random.Generator, n_draws: int, count: int
    ) -> Float[np.ndarray, "n_draws count"] | None:
        """Independent draws of `count` values, on the host; None if it is not known how.

        Values that have no prior here are NaN.
        """
        return None

    def tempered(self, power: float) -> AbstractPrior:
        """The prior to this power."""
        return TemperedPrior(self, power)


class NormalPrior(AbstractPrior):
    """θ_j ~ N(m_j, v_j), independent."""

    variance: Scalar | Vector
    mean: Scalar | Vector | None = None

    log_concave = True

    def potential(self, values: Vector) -> Scalar:
        centred = values if self.mean is None else values - self.mean
        return 0.5 * jnp.sum(centred**2 / self.variance)

    def log_integral(self, count: int) -> float:
        return _summed(0.5 * np.log(2 * np.pi * _host(self.variance)), count)

    def sample(self, random: np.random.Generator, n_draws: int, count: int) -> np.ndarray:
        drawn = np.sqrt(_host(self.variance)) * random.standard_normal((n_draws, count))
        return drawn if self.mean is None else drawn + _host(self.mean)

    def tempered(self, power: float) -> NormalPrior:
        return dataclasses.replace(self, variance=self.variance / power)


class StudentTPrior(AbstractPrior):
    """θ_j ~ t_ν(m_j, s_j), independent: f₀ = (ν + 1)/2 · log(1 + (θ − m)²/νs²)."""

    scale: Scalar | Vector
    degrees: Scalar | Vector
    mean: Scalar | Vector

    log_concave = False

    def potential(self, values: Vector) -> Scalar:
        squares = ((values - self.mean) / self.scale) ** 2
        return jnp.sum(0.5 * (self.degrees + 1) * jnp.log1p(squares / self.degrees))

    def log_integral(self, count: int) -> float:
        return _summed(_log_integral_of_t(self.scale, self.degrees), count)

    def sample(self, random: np.random.Generator, n_draws: int, count: int) -> np.ndarray:
        drawn = random.standard_t(_host(self.degrees), (n_draws, count))
        return _host(self.mean) + _host(self.scale) * drawn


class LaplacePrior(AbstractPrior):
    """θ_j ~ Laplace(m_j, b_j), independent: f₀ = |θ − m|/b. It has a kink at m."""

    scale: Scalar | Vector
    mean: Scalar | Vector

    log_concave = True

    def potential(self, values: Vector) -> Scalar:
        return jnp.sum(jnp.abs(values - self.mean) / self.scale)

    def log_integral(self, count: int) -> float:
        return _summed(np.log(2 * _host(self.scale)), count)

    def sample(self, random: np.random.Generator, n_draws: int, count: int) -> np.ndarray:
        return random.laplace(_host(self.mean), _host(self.scale), (n_draws, count))


class LogHalfStudentTPrior(AbstractPrior):
    """s = log σ with σ ~ half-t_ν(0, scale): f₀ = (ν + 1)/2 · log(1 + e^{2s}/ν·scale²) − s."""

    scale: Scalar | Vector
    degrees: Scalar

    log_concave = True

    def potential(self, values: Vector) -> Scalar:
        log_squares = 2 * (values - jnp.log(self.scale)) - jnp.log(self.degrees)
        return jnp.sum(0.5 * (self.degrees + 1) * jax.nn.softplus(log_squares) - values)

    def log_integral(self, count: int) -> float:
        # ∫ exp(−f₀) ds is the integral of the half-t over σ = eˢ.
        return _summed(_log_integral_of_t(self.scale, self.degrees) - math.log(2), count)

    def sample(self, random: np.random.Generator, n_draws: int, count: int) -> np.ndarray:
        drawn = random.standard_t(_host(self.degrees), (n_draws, count))
        return np.log(_host(self.scale) * np.abs(drawn))


class LogHalfNormalPrior(AbstractPrior):
    """s = log σ with σ ~ half-normal(scale): f₀ = e^{2s}/2scale² − s."""

    scale: Scalar | Vector

    log_concave = True

    def potential(self, values: Vector) -> Scalar:
        return jnp.sum(0.5 * jnp.exp(2 * (values - jnp.log(self.scale))) - values)

    def log_integral(self, count: int) -> float:
        return _summed(np.log(_host(self.scale)) + 0.5 * math.log(math.pi / 2), count)

    def sample(self, random: np.random.Generator, n_draws: int, count: int) -> np.ndarray:
        return np.log(_host(self.scale) * np.abs(random.standard_normal((n_draws, count))))


class LogGammaPrior(AbstractPrior):
    """s = log ν with ν ~ Gamma(shape, rate): f₀ = rate · eˢ − shape · s."""

    shape: Scalar
    rate: Scalar | Vector

    log_concave = True

    def potential(self, values: Vector) -> Scalar:
        return jnp.sum(self.rate * jnp.exp(values) - self.shape * values)

    def log_integral(self, count: int) -> float:
        shape = float(self.shape)
        return _summed(math.lgamma(shape) - shape * np.log(_host(self.rate)), count)

    def sample(self, random: np.random.Generator, n_draws: int, count: int) -> np.ndarray:
        return np.log(random.gamma(float(self.shape), 1 / _host(self.rate), (n_draws, count)))


# Effects that share an unknown scale, with the scale integrated out.
#
#     p(u) = ∫ N(u; 0, σ²I) p(σ) dσ ≈ Σ_m w_m N(u; 0, σ_m²I),   log σ_m evenly spaced
#
# A position holds no scale, so there is no funnel of scales and effects. Given σ, log‖u‖ has the sd
# 1/√(2K) for K effects: with nodes at such distances the sum is the integral to many digits.

_LARGEST_GAP = 0.5
_HIGHEST = 50.0
"""Largest scale, in units of the scale of its prior."""


class ScaleMixturePrior(AbstractPrior):
    """u_j ~ N(0, σ²) given σ, which has any prior: f₀ = −log Σ_m w_m σ_m^(−K) exp(−‖u‖²/2σ_m²)."""

    log_scales: Float[Array, " m"]
    log_weights: Float[Array, " m"]

    log_concave = False

    @classmethod
    def of(
        cls,
        log_density: Callable[[np.ndarray], np.ndarray],
        scale: float,
        floor: float,
        n_effects: int,
        dtype: Any,
    ) -> ScaleMixturePrior:
        """From log p(σ), whose unit is `scale`; scales below `floor` count as `floor`."""
        low, high = math.log(min(floor, scale / 10)), math.log(_HIGHEST * scale)
        gap = min(_LARGEST_GAP, 1 / math.sqrt(2 * n_effects))
        nodes = np.linspace(low, high, 2 + int((high - low) / gap))
        log_weights = log_density(np.exp(nodes)) + nodes
        log_weights -= np.logaddexp.reduce(log_weights)
        return cls(jnp.asarray(nodes, dtype), jnp.asarray(log_weights, dtype))

    def potential(self, values: Vector) -> Scalar:
        return -jax.nn.logsumexp(self.log_terms(values))

    def log_integral(self, count: int) -> float:
        return 0.5 * count * math.log(2 * math.pi)  # the weights add up to one

    def sample(self, random: np.random.Generator, n_draws: int, count: int) -> np.ndarray:
        weights = np.exp(_host(self.log_weights))
        places = random.choice(len(weights), n_draws, p=weights / weights.sum())
        scales = np.exp(_host(self.log_scales))[places, None]
        return scales * random.standard_normal((n_draws, count))

    def log_terms(self, values: Float[Array, "*n k"]) -> Float[Array, "*n m"]:
        """log w_m N(u; 0, σ_m²I), up to a constant; for one or several u."""
        squares = jnp.sum(values**2, axis=-1, keepdims=True)
        ratio = 0.5 * squares * jnp.exp(-2 * self.log_scales)
        return self.log_weights - values.shape[-1] * self.log_scales - ratio

    def given(self, place: int) -> NormalPrior:
        """The prior given one of the scales."""
        return NormalPrior(jnp.exp(2 * self.log_scales[place]))


def scale_mixtures(
    prior: AbstractPrior, places: np.ndarray
) -> Iterator[tuple[np.ndarray, ScaleMixturePrior]]:
    """The mixtures in a prior of a vector with these places in a position, and their places."""
    if isinstance(prior, ScaleMixturePrior):
        yield places, prior
    elif isinstance(prior, JoinedPrior | PriorOfEntries):
        for part, entries in zip(prior.parts, prior.entries, strict=True):
            yield from scale_mixtures(part, places[list(entries)])


class AbstractPriorOfParts(AbstractPrior):
    """Independent priors of parts of a vector."""

    parts: tuple[AbstractPrior, ...]

    @property
    @abc.abstractmethod
    def counts(self) -> Sequence[int]:
        """The number of values of each part."""

    @property
    def log_concave(self) -> bool:
        return all(part.log_concave for part in self.parts)

    def log_integral(self, count: int) -> float | None:
        pairs = zip(self.parts, self.counts, strict=True)
        return sum_if_known(part.log_integral(of_part) for part, of_part in pairs)

    def tempered(self, power: float) -> Self:
        return dataclasses.replace(self, parts=tuple(part.tempered(power) for part in self.parts))


class JoinedPrior(AbstractPriorOfParts):
    """Independent priors of consecutive parts of a vector."""

    lengths: tuple[int, ...] = eqx.field(static=True)

    @property
    def counts(self) -> Sequence[int]:
        return self.lengths

    @property
    def entries(self) -> tuple[tuple[int, ...], ...]:
        """The entries of the vector that each part is the prior of."""
        ends = itertools.accumulate(self.lengths, initial=0)
        return tuple(tuple(range(*pair)) for pair in itertools.pairwise(ends))

    def potential(self, values: Vector) -> Scalar:
        total, start = jnp.zeros((), values.dtype), 0
        for part, length in zip(self.parts, self.lengths, strict=True):
            total += part.potential(values[start : start + length])
            start += length
        return total

    def sample(self, random: np.random.Generator, n_draws: int, count: int) -> np.ndarray | None:
        return _sampled(self.parts, self.entries, random, n_draws, count)


class PriorOfEntries(AbstractPriorOfParts):
    """Independent priors of some entries of a vector. The other entries have none here."""

    entries: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @property
    def counts(self) -> Sequence[int]:
        return [len(places) for places in self.entries]

    def potential(self, values: Vector) -> Scalar:
        total = jnp.zeros((), values.dtype)
        for part, entries in zip(self.parts, self.entries, strict=True):
            total += part.potential(values[jnp.asarray(entries)])
        return total

    def sample(self, random: np.random.Generator, n_draws: int, count: int) -> np.ndarray | None:
        return _sampled(self.parts, self.entries, random, n_draws, count)


class TemperedPrior(AbstractPrior):
    """A prior to a power."""

    prior: AbstractPrior
    power: float

    @property
    def log_concave(self) -> bool:
        return self.prior.log_concave

    def potential(self, values: Vector) -> Scalar:
        return self.power * self.prior.potential(values)


def sum_if_known(terms: Iterable[float | None]) -> float | None:
    """The sum; None if a term is not known."""
    found = list(terms)
    return None if None in found else math.fsum(found)  # type: ignore[arg-type]


def _sampled(
    parts: Sequence[AbstractPrior],
    entries: Sequence[tuple[int, ...]],
    random: np.random.Generator,
    n_draws: int,
    count: int,
) -> np.ndarray | None:
    """Draws of each part at its entries, NaN elsewhere; None if a part has none."""
    found = np.full((n_draws, count), np.nan)
    for part, places in zip(parts, entries, strict=True):
        drawn = part.sample(random, n_draws, len(places))
        if drawn is None:
            return None
        found[:, list(places)] = drawn
    return found


def _host(values: Any) -> np.ndarray:
    return np.asarray(values, np.float64)


def _summed(per_value: np.ndarray, count: int) -> float:
    return float(np.broadcast_to(per_value, (count,)).sum())


def _log_integral_of_t(scale: Any, degrees: Any) -> np.ndarray:
    """log ∫ (1 + x²/νs²)^{−(ν+1)/2} dx."""
    nu = _host(degrees)
    of_degrees = np.vectorize(lambda v: math.lgamma(v / 2) - math.lgamma((v + 1) / 2))(nu)
    return np.log(_host(scale)) + 0.5 * np.log(nu * np.pi) + of_degrees
