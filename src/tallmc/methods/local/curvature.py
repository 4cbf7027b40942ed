"""Scales of shared parameters and groups at the start, in one pass over all rows.

    M_j = 1/max(Σ ∂²_j f_i, Σ (∂_j f_i)²)   over rows i and the priors of the groups, and φ's own

The first sum is the diagonal of ∇²f. It may be close to zero or negative where chains start: that
of a log standard deviation of groups is, if all groups start at their mean. The second sum
estimates the same Fisher information from the gradients of rows and groups. The larger one gives
the smaller, safer step. Column j of the Hessian of a row is a directional derivative of its
gradient, so no row needs a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from ...models.local import LocalPosterior
from ...models.local_densities import LocalDensities, LocalRows


def inverse_curvature(
    posterior: LocalPosterior,
) -> tuple[Float[Array, " s"], dict[str, Float[Array, "groups ..."]]]:
    """M of the shared parameters, and of the groups by kind, where chains start."""
    densities, tables = posterior.densities, posterior.group_init
    shared = ravel_pytree(posterior.shared_init)[0]
    width = (shared.size + sum(values[0].size for values in tables.values())) ** 2
    totals = posterior.rows.reduce(_of_block, densities, shared, tables, width=width).rounded()
    of_shared, of_groups = totals
    of_shared = of_shared + _terms(
        lambda free: -densities.shared_log_prior(densities.layout.unravel(free)), shared
    )
    for kind, values in tables.items():
        priors, of_groups[kind] = _with_prior(kind, densities, shared, values, of_groups[kind])
        of_shared = of_shared + priors
    return _inverted(of_shared), {kind: _inverted(sums) for kind, sums in of_groups.items()}


def _of_block(
    rows: LocalRows,
    counted: Bool[Array, " n"],
    densities: LocalDensities,
    shared: Float[Array, " s"],
    tables: dict[str, Array],
) -> tuple[Float[Array, "2 s"], dict[str, Float[Array, "2 groups ..."]]]:
    """Both sums over the rows of a block."""
    local = {kind: values[rows.groups[kind]] for kind, values in tables.items()}

    def of_row(local: dict[str, Array], data: PyTree[Array]) -> PyTree[Array]:
        def potential(params: tuple[Array, dict[str, Array]]) -> Array:
            seen = densities.constrained(densities.layout.unravel(params[0]))
            return -jnp.asarray(densities.log_likelihood(seen, params[1], data))

        return _terms(potential, (shared, local))

    of_shared, of_groups = jax.tree.map(
        lambda terms: jnp.where(counted.reshape((-1,) + (1,) * (terms.ndim - 1)), terms, 0),
        jax.vmap(of_row)(local, rows.data),
    )
    sums = {
        kind: jnp.zeros((2, *values.shape), values.dtype)
        .at[:, rows.groups[kind]]
        .add(jnp.moveaxis(of_groups[kind], 1, 0))
        for kind, values in tables.items()
    }
    return jnp.sum(of_shared, axis=0), sums


@eqx.filter_jit
def _with_prior(
    kind: str,
    densities: LocalDensities,
    shared: Float[Array, " s"],
    values: Float[Array, "groups ..."],
    sums: Float[Array, "2 groups ..."],
) -> tuple[Float[Array, "2 s"], Float[Array, "2 groups ..."]]:
    """What the prior of these groups adds for φ, and the sums of the groups with their prior."""

    def of_group(z: Array) -> PyTree[Array]:
        def potential(params: tuple[Array, Array]) -> Array:
            seen = densities.constrained(densities.layout.unravel(params[0]))
            return -densities.group_priors[kind].log_density(seen, params[1])

        return _terms(potential, (shared, z))

    of_shared, of_groups = jax.vmap(of_group)(values)
    return jnp.sum(of_shared, axis=0), sums + jnp.moveaxis(of_groups, 1, 0)


def _terms(function: Callable[[Any], Array], at: PyTree[Array]) -> PyTree[Array]:
    """∂²_j and (∂_j)² of a function of a pytree: such a pytree with a leading axis of two."""
    vector, unravel = ravel_pytree(at)
    gradient = jax.grad(lambda position: function(unravel(position)))

    def second(j: Array) -> Array:
        direction = jnp.zeros_like(vector).at[j].set(1)
        return jax.jvp(gradient, (vector,), (direction,))[1][j]

    diagonal = lax.map(second, jnp.arange(vector.size))
    return jax.vmap(unravel)(jnp.stack([diagonal, gradient(vector) ** 2]))


def _inverted(sums: Float[Array, "2 ..."]) -> Float[Array, "*k"]:
    curvature = np.nanmax(np.asarray(sums, np.float64), axis=0)
    positive = curvature > 0  # no density depends on the other parameters
    typical = curvature[positive].mean() if positive.any() else 1.0
    return jnp.asarray(1 / np.where(positive, curvature, typical), sums.dtype)
