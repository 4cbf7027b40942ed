"""What a hidden Markov model observes in its states: normal, Poisson or categorical numbers.

    normal       y | k ~ N(m_k, s_k²)        m ordered, s positive
    poisson      y | k ~ Poisson(r_k)        r positive and ordered
    categorical  y | k ~ Categorical(e_k)    rows of the matrix e on the simplex

Ordered means and rates leave one labelling of the states out of K!. The rows of e have no order, so
the K! labellings of a categorical model are equal modes; a chain stays in one of them.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.scipy.stats import norm
from jaxtyping import Array, Float, PyTree

from ..core.errors import InvalidInput

_LOG_SD = 2.0
"""The prior sd of the log of a scale or a rate."""
_SPREAD = 5.0
"""The prior sd of a mean, in sds of the series."""


class AbstractEmission(eqx.Module):
    """The law of an observation in each state, with the prior of its parameters."""

    @property
    @abc.abstractmethod
    def transforms(self) -> dict[str, str]:
        """Constraints of the parameters, by name."""

    @abc.abstractmethod
    def begin(self, y: Float[np.ndarray, " T"], n_states: int) -> dict[str, np.ndarray]:
        """Parameters where a search starts."""

    @abc.abstractmethod
    def log_density(self, params: PyTree, y: Float[Array, ""]) -> Float[Array, " k"]:
        """log p(y | state k) for every state."""

    @abc.abstractmethod
    def log_prior(self, params: PyTree) -> Float[Array, ""]:
        """The log prior density of the constrained parameters."""

    @abc.abstractmethod
    def describe(self) -> str:
        """The priors in words."""


class NormalEmission(AbstractEmission):
    """y | k ~ N(m_k, s_k²), with priors around the mean and the sd of the series."""

    centre: Float[Array, ""]
    sd: Float[Array, ""]

    @property
    def transforms(self) -> dict[str, str]:
        return {"means": "ordered_vector", "scales": "positive"}

    def begin(self, y: Float[np.ndarray, " T"], n_states: int) -> dict[str, np.ndarray]:
        means = _quantiles(y, n_states)
        means = means + np.arange(n_states) * 1e-3 * y.std()  # strictly ordered with ties
        return {"means": means, "scales": np.full(n_states, y.std() / n_states)}

    def log_density(self, params: PyTree, y: Float[Array, ""]) -> Float[Array, " k"]:
        return norm.logpdf(y, params["means"], params["scales"])

    def log_prior(self, params: PyTree) -> Float[Array, ""]:
        of_means = norm.logpdf(params["means"], self.centre, _SPREAD * self.sd)
        return jnp.sum(of_means) + _log_normal(params["scales"], self.sd)

    def describe(self) -> str:
        return (
            f"means N({self.centre:.3g}, {_SPREAD * self.sd:.3g}²) in increasing order, "
            f"log scales N(log {self.sd:.3g}, {_LOG_SD:g}²)"
        )


class PoissonEmission(AbstractEmission):
    """y | k ~ Poisson(r_k), with a prior around the mean of the series."""

    centre: Float[Array, ""]

    @property
    def transforms(self) -> dict[str, str]:
        return {"rates": "positive_ordered_vector"}

    def begin(self, y: Float[np.ndarray, " T"], n_states: int) -> dict[str, np.ndarray]:
        rates = np.maximum(_quantiles(y, n_states), 0.1 * y.mean())
        return {"rates": rates * (1 + 0.05 * np.arange(n_states))}

    def log_density(self, params: PyTree, y: Float[Array, ""]) -> Float[Array, " k"]:
        return y * jnp.log(params["rates"]) - params["rates"] - gammaln(y + 1)

    def log_prior(self, params: PyTree) -> Float[Array, ""]:
        return _log_normal(params["rates"], self.centre)

    def describe(self) -> str:
        return f"log rates N(log {self.centre:.3g}, {_LOG_SD:g}²) in increasing order"


class CategoricalEmission(AbstractEmission):
    """y | k ~ Categorical(e_k), with uniform priors on the simplex."""

    n_categories: int = eqx.field(static=True)

    @property
    def transforms(self) -> dict[str, str]:
        return {"emission": "simplex"}

    def begin(self, y: Float[np.ndarray, " T"], n_states: int) -> dict[str, np.ndarray]:
        # Equal states would be a saddle point of the density.
        tilted = np.random.default_rng(0).dirichlet(np.ones(self.n_categories), n_states)
        shares = np.bincount(y.astype(int), minlength=self.n_categories) / len(y)
        found = 0.5 * tilted + 0.5 * (shares + 1e-3)
        return {"emission": found / found.sum(axis=1, keepdims=True)}

    def log_density(self, params: PyTree, y: Float[Array, ""]) -> Float[Array, " k"]:
        return jnp.log(params["emission"][:, y.astype(int)])

    def log_prior(self, params: PyTree) -> Float[Array, ""]:
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


def _log_normal(values: Float[Array, " k"], median: Float[Array, ""]) -> Float[Array, ""]:
    """Σ log density of values whose logs are N(log median, 2²)."""
    logs = jnp.log(values)
    return jnp.sum(norm.logpdf(logs, jnp.log(median), _LOG_SD) - logs)
