"""Densities of a model with shared parameters φ and parameters z_g of groups of rows.

    f(φ, z) = −log p(φ) − Σ_k Σ_g log p(z_{k,g} | φ) − Σ_i log p(x_i | φ, z_{1,g₁(i)}, …)

k is a kind of groups, such as users and items, and g_k(i) is the group of row i. A row depends on
φ and on one group of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ..core.errors import InvalidInput
from ..core.layout import Layout
from .group_priors import AbstractGroupPrior
from .transforms import Constraints


class LocalRows(NamedTuple):
    """Rows with the numbers of their groups."""

    data: PyTree[Array]
    groups: dict[str, Int[Array, " n"]]
    """The group of each row, by kind."""


class LocalDensities(eqx.Module):
    """The log densities of a model with parameters of groups."""

    log_likelihood: Callable[[PyTree, dict[str, Array], PyTree], Any]
    """log p(x_i | φ, z), of constrained shared parameters and the groups of the row."""
    log_prior: Callable[[PyTree], Any]
    """log p(φ), of constrained shared parameters."""
    group_priors: dict[str, AbstractGroupPrior]
    constraints: Constraints | None
    """Maps unconstrained shared parameters to constrained ones; None if they are equal."""
    layout: Layout = eqx.field(static=True)
    """The layout of the unconstrained shared parameters."""

    def constrained(self, shared: PyTree) -> PyTree:
        """The constrained shared parameters."""
        return shared if self.constraints is None else self.constraints(shared)

    def shared_log_prior(self, shared: PyTree) -> Float[Array, ""]:
        """log p(φ), with the Jacobian of the constraints."""
        log_prior = jnp.asarray(self.log_prior(self.constrained(shared)))
        if self.constraints is None:
            return log_prior
        return log_prior + self.constraints.log_determinant(shared)

    def of_rows(
        self, shared: PyTree, local: Mapping[str, Array], data: PyTree[Array]
    ) -> Float[Array, " n"]:
        """log p(x_i | φ, z) per row; `local` has the parameters of the groups of each row."""
        constrained = self.constrained(shared)
        return jax.vmap(self.log_likelihood, in_axes=(None, 0, 0))(constrained, dict(local), data)

    def of_groups(self, kind: str, shared: PyTree, values: Float[Array, "n ..."]) -> Array:
        """log p(z_g | φ) of each of these groups."""
        density = self.group_priors[kind].log_density
        return jax.vmap(density, in_axes=(None, 0))(self.constrained(shared), values)

    def split(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
        """The shared parameters, and those of the groups by kind."""
        shared = {name: part for name, part in params.items() if name not in self.group_priors}
        return shared, {kind: params[kind] for kind in params if kind in self.group_priors}


class DenseLikelihood(eqx.Module):
    """The log-likelihood of rows as a function of all parameters."""

    densities: LocalDensities

    def __call__(self, params: Mapping[str, Any], rows: LocalRows) -> Float[Array, " n"]:
        shared, groups = self.densities.split(params)
        local = {kind: values[rows.groups[kind]] for kind, values in groups.items()}
        return self.densities.of_rows(shared, local, rows.data)


class DensePrior(eqx.Module):
    """The log prior of all parameters."""

    densities: LocalDensities

    def __call__(self, params: Mapping[str, Any]) -> Float[Array, ""]:
        shared, groups = self.densities.split(params)
        total = self.densities.shared_log_prior(shared)
        for kind, values in groups.items():
            total = total + jnp.sum(self.densities.of_groups(kind, shared, values))
        return total


class HiddenGroups(eqx.Module):
    """Stands for a density of a position that holds some groups only."""

    def __call__(self, *_: Any) -> Array:
        raise InvalidInput(
            "posterior",
            "keep all groups for this: its positions are the shared parameters and the kept groups",
            "some groups",
            'Sample with tallmc.local_sgld(...), or use posterior.keeping("all").',
        )
