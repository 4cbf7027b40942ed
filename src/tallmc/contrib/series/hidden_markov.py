"""Hidden Markov models with K discrete states, by buffered windows.

    x_t | x_{t−1} = j ~ Categorical(P_j),   y_t | x_t = k ~ p(· | φ_k),   x_1 ~ π = πP

The filter runs on probabilities α_k = p(x_t = k | y_{<t}), with emissions in log space:

    log p(y_t | y_{<t}) = log Σ_k exp(log α_k + log p(y_t | φ_k)),   α' = (filtered α) P

A piece starts from the stationary law π of P, or, where it contains the first observation, from the
given `initial`. The filter forgets its start at the rate |λ₂(P)|^B or faster, so the error of a
window's gradient falls geometrically in the buffer B. A row costs O((L + B) K²).
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from ..._core.arrays import Scalar, check_numeric
from ..._core.errors import InvalidInput, check_int
from ...models.posterior import ModelPosterior
from .windows import LOG_SD, SPREAD, AbstractSeries, checked_series, log_normal, series_posterior

# What a hidden Markov model observes in its states: normal, Poisson or categorical numbers.
#
# Ordered means and rates leave one labelling of the states out of K!. The rows of e have no order,
# so the K! labellings of a categorical model are equal modes; a chain stays in one of them.


class AbstractEmission(eqx.Module):
    """The law of an observation in each state, with the prior of its parameters."""

    transforms: ClassVar[dict[str, str]]
    """Constraints of the parameters, by name."""

    @abc.abstractmethod
    def begin(self, y: Float[np.ndarray, " T"], n_states: int) -> dict[str, np.ndarray]:
        """Parameters where a search starts."""

    @abc.abstractmethod
    def log_density(self, params: PyTree, y: Scalar) -> Float[Array, " k"]:
        """Log p(y | state k) for every state."""

    @abc.abstractmethod
    def log_prior(self, params: PyTree) -> Scalar:
        """The log prior density of the constrained parameters."""

    @abc.abstractmethod
    def describe(self) -> str:
        """The priors in words."""


class NormalEmission(AbstractEmission):
    """y | k ~ N(m_k, s_k²), m ordered, with priors around the mean and the sd of the series."""

    centre: Scalar
    sd: Scalar

    transforms: ClassVar = {"means": "ordered_vector", "scales": "positive"}

    def begin(self, y: Float[np.ndarray, " T"], n_states: int) -> dict[str, np.ndarray]:
        apart = np.arange(n_states) * 1e-3 * y.std()  # strictly ordered with ties
        means = _quantiles(y, n_states) + apart
        return {"means": means, "scales": np.full(n_states, y.std() / n_states)}

    def log_density(self, params: PyTree, y: Scalar) -> Float[Array, " k"]:
        return norm.logpdf(y, params["means"], params["scales"])

    def log_prior(self, params: PyTree) -> Scalar:
        of_means = norm.logpdf(params["means"], self.centre, SPREAD * self.sd)
        return jnp.sum(of_means) + log_normal(params["scales"], self.sd)

    def describe(self) -> str:
        return (
            f"means N({self.centre:.3g}, {SPREAD * self.sd:.3g}²) in increasing order, "
            f"log scales N(log {self.sd:.3g}, {LOG_SD:g}²)"
        )


class PoissonEmission(AbstractEmission):
    """y | k ~ Poisson(r_k), r ordered, with a prior around the mean of the series."""

    centre: Scalar

    transforms: ClassVar = {"rates": "positive_ordered_vector"}

    def begin(self, y: Float[np.ndarray, " T"], n_states: int) -> dict[str, np.ndarray]:
        rates = np.maximum(_quantiles(y, n_states), 0.1 * y.mean())
        return {"rates": rates * (1 + 0.05 * np.arange(n_states))}

    def log_density(self, params: PyTree, y: Scalar) -> Float[Array, " k"]:
        return y * jnp.log(params["rates"]) - params["rates"] - gammaln(y + 1)

    def log_prior(self, params: PyTree) -> Scalar:
        return log_normal(params["rates"], self.centre)

    def describe(self) -> str:
        return f"log rates N(log {self.centre:.3g}, {LOG_SD:g}²) in increasing order"


class CategoricalEmission(AbstractEmission):
    """y | k ~ Categorical(e_k), with uniform priors of the rows e_k on the simplex."""

    n_categories: int = eqx.field(static=True)

    transforms: ClassVar = {"emission": "simplex"}

    def begin(self, y: Float[np.ndarray, " T"], n_states: int) -> dict[str, np.ndarray]:
        # Equal states would be a saddle point of the density.
        tilted = np.random.default_rng(0).dirichlet(np.ones(self.n_categories), n_states)
        shares = np.bincount(y.astype(int), minlength=self.n_categories) / len(y)
        found = 0.5 * tilted + 0.5 * (shares + 1e-3)
        return {"emission": found / found.sum(axis=1, keepdims=True)}

    def log_density(self, params: PyTree, y: Scalar) -> Float[Array, " k"]:
        return jnp.log(params["emission"][:, y.astype(int)])

    def log_prior(self, params: PyTree) -> Scalar:
        return jnp.zeros((), params["emission"].dtype)

    def describe(self) -> str:
        return "emission rows Dirichlet(1)"


def emission_of(name: str, y: Float[np.ndarray, " T"], dtype: Any) -> AbstractEmission:
    """The emission with this name for the observations that are not missing."""
    if name == "normal":
        if y.std() == 0:
            raise InvalidInput("y", "vary", "a constant series")
        return NormalEmission(jnp.asarray(y.mean(), dtype), jnp.asarray(y.std(), dtype))
    if name not in ("poisson", "categorical"):
        raise InvalidInput("emission", 'be "normal", "poisson" or "categorical"', name)
    if (y % 1 != 0).any() or y.min() < 0:
        cure = 'Use emission="normal" for other numbers.'
        raise InvalidInput("y", f"be integers from 0 on for a {name} emission", y.min(), cure)
    if name == "poisson":
        if y.max() == 0:
            raise InvalidInput("y", "have a positive count", "only zeros")
        return PoissonEmission(jnp.asarray(y.mean(), dtype))
    if y.max() < 1:
        raise InvalidInput("y", "have at least two categories", "only zeros")
    return CategoricalEmission(int(y.max()) + 1)


def _quantiles(y: Float[np.ndarray, " T"], n_states: int) -> np.ndarray:
    return np.quantile(y, (np.arange(n_states) + 0.5) / n_states)


_STAY = 0.9  # The probability of staying in a state where the search for the mode starts


class MarkovFactors(NamedTuple):
    """What the filter needs."""

    transition: Float[Array, "k k"]
    stationary: Float[Array, " k"]
    emission: PyTree[Array]


class HiddenMarkovSeries(AbstractSeries):
    """The filter of a hidden Markov model. Its state is the vector α."""

    emission: AbstractEmission
    initial: Float[Array, " k"] | None  # the law of the first state; None for the stationary law

    def factors(self, params: PyTree) -> MarkovFactors:
        transition = params["transition"]
        of_emission = {name: leaf for name, leaf in params.items() if name != "transition"}
        return MarkovFactors(transition, stationary_law(transition), of_emission)

    def start(self, factors: MarkovFactors, at_origin: Bool[Array, ""]) -> Float[Array, " k"]:
        if self.initial is None:
            return factors.stationary
        return jnp.where(at_origin, self.initial, factors.stationary)

    def observe(
        self, factors: MarkovFactors, state: Float[Array, " k"], y: Float[Array, " p"]
    ) -> tuple[Float[Array, " k"], Scalar]:
        missing = jnp.isnan(y[0])
        of_states = self.emission.log_density(factors.emission, jnp.where(missing, 0, y[0]))
        tiny = jnp.finfo(state.dtype).tiny
        joint = jnp.log(jnp.maximum(state, tiny)) + jnp.where(missing, 0, of_states)
        total = logsumexp(joint)
        return jnp.exp(joint - total), jnp.where(missing, 0, total)

    def move(self, factors: MarkovFactors, state: Float[Array, " k"]) -> Float[Array, " k"]:
        return state @ factors.transition

    def tilt(
        self, state: Float[Array, " k"], by: Float[Array, " k"]
    ) -> tuple[Float[Array, " k"], Scalar]:
        tilted = state * jnp.exp(by)
        total = jnp.sum(tilted)
        return tilted / total, jnp.log(total)


class MarkovPrior(eqx.Module):
    """Dirichlet rows of the transition matrix, and the prior of the emission."""

    concentration: Float[Array, "k k"]
    emission: AbstractEmission

    def __call__(self, params: PyTree) -> Scalar:
        a = self.concentration
        constants = gammaln(a.sum(axis=1)).sum() - gammaln(a).sum()
        rows = jnp.sum((a - 1) * jnp.log(params["transition"]))
        return constants + rows + self.emission.log_prior(params)


def stationary_law(transition: Float[Array, "k k"]) -> Float[Array, " k"]:
    """π with πP = π and Σπ = 1."""
    k = transition.shape[0]
    # π(I − P) = 0 and π11ᵀ = 1ᵀ together; the sum of both matrices is not singular.
    system = jnp.eye(k, dtype=transition.dtype) - transition + 1
    return jnp.linalg.solve(system.T, jnp.ones(k, transition.dtype))


def hidden_markov(
    y: ArrayLike,
    n_states: int,
    emission: str = "normal",
    *,
    window: int | None = None,
    buffer: int | None = None,
    messages: str = "past",
    initial: ArrayLike | None = None,
    transition_prior: ArrayLike = 1.0,
) -> ModelPosterior:
    """A hidden Markov model of a series, with windows of the series as rows.

    **Arguments:**

    - `y`: the series, one number per time, in order. NaN is a missing observation.
    - `n_states`: K, the number of states.
    - `emission`: "normal", "poisson" or "categorical". Categories are numbered from 0.
    - `window`: L, the observations that a row counts. By default 64, or the length of the buffer if
      that is more.
    - `buffer`: B, the observations before a window that a row reads to learn the state. By default
      the memory of the series is measured at a rough mode, and B is the shortest buffer that moves
      the posterior mean by less than 0.01 posterior standard deviations.
    - `messages`: "past" for log p(window | buffer before it); "both" for the gradients of Aicher et
      al. (2019), with a buffer on both sides. "both" excludes methods that need second derivatives.
    - `initial`: the probabilities of the first state; by default the stationary law.
    - `transition_prior`: the concentration of the Dirichlet prior of each row of the transition
      matrix: a number, or a K×K matrix.

    **Returns:** a posterior with the parameters `transition` (rows sum to 1) and, by the emission,
    `means` (increasing) and `scales`, `rates` (increasing), or `emission` (rows sum to 1).
    `posterior.description` tells the buffer and the error that it causes.

    Warns if the series remembers so much that no buffer of up to 2,048 observations is enough.
    """
    series = checked_series(y)
    k = check_int("n_states", n_states, 2)
    if series.shape[1] != 1:
        raise InvalidInput("y", "have one column for a hidden Markov model", series.shape)
    known = series[~np.isnan(series)].astype(np.float64)
    law, dtype = emission_of(emission, known, series.dtype), series.dtype
    prior = np.asarray(check_numeric("transition_prior", transition_prior), np.float64)
    if prior.shape not in ((), (k, k)) or not (np.isfinite(prior) & (prior > 0)).all():
        rule = f"be positive, a number or a {k}×{k} matrix"
        raise InvalidInput("transition_prior", rule, transition_prior)
    least, most = prior.min(), prior.max()
    shown = f"{least:g}" if least == most else f"{least:g} to {most:g}"
    first = None
    if initial is not None:
        given = np.asarray(check_numeric("initial", initial), np.float64)
        if given.shape != (k,) or (given < 0).any() or abs(given.sum() - 1) > 1e-6:
            raise InvalidInput("initial", f"be {k} probabilities that sum to 1", initial)
        first = jnp.asarray(given, dtype)
    stay = np.full((k, k), (1 - _STAY) / (k - 1))
    np.fill_diagonal(stay, _STAY)
    return series_posterior(
        HiddenMarkovSeries(law, first),
        MarkovPrior(jnp.asarray(np.broadcast_to(prior, (k, k)), dtype), law),
        series,
        {"transition": stay, **law.begin(known, k)},
        {"transition": "simplex", **law.transforms},
        window=window,
        buffer=buffer,
        messages=messages,
        description={
            "family": f"hidden Markov model, {k} states, {emission} emissions",
            "priors": f"transition rows Dirichlet({shown}), {law.describe()}",
        },
    )
