"""Priors of the parameters of groups, given the shared parameters.

    log p(z_1, …, z_G | φ) = Σ_g log p(z_g | φ)

A step that knows only some groups has two ways to the gradient of this sum with respect to φ.
In general it is estimated from the touched groups, each with the weight 1/q_g, where q_g is the
probability that a step touches the group. The estimate is unbiased. With s_g = ∇_φ log p(z_g | φ),
its covariance is Σ_g (1/q_g − 1) s_g s_gᵀ, up to the small dependence between groups. If the sum
depends on the groups through a sum of statistics, this sum is kept up to date, and the gradient has
no noise. For independent Gaussian entries

    Σ_g log p(z_g | φ) = −½ Σ_j [(B_j − 2 m_j A_j + G m_j²)/s_j² + G log 2πs_j²],
    A = Σ_g z_g,   B = Σ_g z_g²,   with mean m(φ) and standard deviation s(φ)

A and B change by the touched groups only.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..core.errors import InvalidInput


class AbstractGroupPrior(eqx.Module):
    """log p(z | φ) of one kind of groups."""

    @abc.abstractmethod
    def log_density(self, shared: PyTree, values: Float[Array, "*k"]) -> Array:
        """log p(z_g | φ) of one group, a scalar."""

    @abc.abstractmethod
    def statistics(self, values: Float[Array, "n ..."]) -> PyTree[Array]:
        """Statistics of each group whose sum is kept; None if there are none."""

    @abc.abstractmethod
    def log_density_of_all(
        self,
        shared: PyTree,
        values: Float[Array, "n ..."],
        weights: Float[Array, " n"],
        totals: PyTree[Array],
        count: int,
    ) -> Float[Array, ""]:
        """Σ log p(z_g | φ) over all groups, as a function of φ.

        **Arguments:**

        - `shared`: φ.
        - `values`, `weights`: some groups, and weights with which they stand for all groups.
        - `totals`: the sum of the statistics of all groups.
        - `count`: the number of all groups.
        """


class GroupDensity(AbstractGroupPrior):
    """A prior given as a function: the gradient with respect to φ comes from touched groups."""

    function: Callable[[PyTree, Array], Any]

    def log_density(self, shared: PyTree, values: Float[Array, "*k"]) -> Array:
        return jnp.asarray(self.function(shared, values))

    def statistics(self, values: Float[Array, "n ..."]) -> None:
        return None

    def log_density_of_all(
        self,
        shared: PyTree,
        values: Float[Array, "n ..."],
        weights: Float[Array, " n"],
        totals: None,
        count: int,
    ) -> Float[Array, ""]:
        densities = jax.vmap(self.log_density, in_axes=(None, 0))(shared, values)
        # A slot without a group has weight 0, and its density may be infinite.
        return jnp.sum(jnp.where(weights > 0, weights * densities, 0))


class NormalGroups(AbstractGroupPrior):
    """Independent normal entries: the gradient with respect to φ has no noise.

    **Arguments:**

    - `law`: `law(shared)`, a pair (mean, sd). Each is a number or has the shape of the parameters
      of a group.

    >>> import jax.numpy as jnp
    >>> prior = NormalGroups(lambda shared: (shared["mean"], shared["sd"]))
    >>> round(float(prior.log_density({"mean": 0.0, "sd": 1.0}, jnp.zeros(()))), 3)
    -0.919
    """

    law: Callable[[PyTree], tuple[Any, Any]]

    def log_density(self, shared: PyTree, values: Float[Array, "*k"]) -> Float[Array, ""]:
        mean, sd = (jnp.asarray(part) for part in self.law(shared))
        return -0.5 * jnp.sum(((values - mean) / sd) ** 2 + jnp.log(2 * np.pi * sd**2))

    def statistics(self, values: Float[Array, "n ..."]) -> tuple[Array, Array]:
        return values, values**2

    def log_density_of_all(
        self,
        shared: PyTree,
        values: Float[Array, "n ..."],
        weights: Float[Array, " n"],
        totals: tuple[Array, Array],
        count: int,
    ) -> Float[Array, ""]:
        mean, sd = (jnp.asarray(part) for part in self.law(shared))
        first, second = totals
        squares = second - 2 * mean * first + count * mean**2
        return -0.5 * jnp.sum(squares / sd**2 + count * jnp.log(2 * np.pi * sd**2))


def group_prior(parameter: str, given: Any) -> AbstractGroupPrior:
    """The prior from a function or a prior; raises for anything else."""
    if isinstance(given, AbstractGroupPrior):
        return given
    if not callable(given):
        rule = "be a function (shared, values) or NormalGroups(...)"
        raise InvalidInput(parameter, rule, given)
    return GroupDensity(given)
