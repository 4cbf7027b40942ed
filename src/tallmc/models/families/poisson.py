"""Counts with log link: y ~ Poisson(e^z), f = e^z − yz minus its minimum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import gammaln
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..._rows.access import PerRow
from ..._rows.sharded import ShardedRows
from ..likelihood import AbstractLikelihood
from ..posterior import ModelPosterior
from ..regression import Family


class Poisson(AbstractLikelihood):
    """y ~ Poisson(e^z). The curvature has no bound."""

    elementwise = True
    log_concave = True
    response = "count"
    fused = True
    exact_changes = True

    def potential(self, z: PerRow, y: PerRow) -> PerRow:
        # f = y(e^t − 1 − t) with t = z − log y: as small as the row's misfit, even for large y.
        positive = y > 0
        t = z - jnp.log(jnp.where(positive, y, 1))
        return jnp.where(positive, y * (jnp.expm1(t) - t), jnp.exp(z))

    def change(self, z: PerRow, y: PerRow) -> Callable[[Float[Array, "n ..."]], Array]:
        mean = lax.optimization_barrier(jnp.exp(z))
        return lambda t: mean * jnp.expm1(t) - y * t

    def slope(self, z: PerRow, y: PerRow) -> PerRow:
        return jnp.exp(z) - y

    def curvature(self, z: PerRow, y: PerRow) -> PerRow:
        return jnp.exp(z)

    def bounded(self, order: int) -> bool:
        return False

    def constant(self, y: PerRow, trials: Any = None) -> PerRow:
        return count_constant(y)

    def mean(self, z: PerRow) -> PerRow:
        return jnp.exp(z)

    def simulate(self, key: PRNGKeyArray, z: PerRow, trials: Any = None) -> PerRow:
        return jax.random.poisson(key, self.mean(z)).astype(z.dtype)


def count_constant(y: PerRow) -> PerRow:
    """y − y log y + log y!, which is 0 for y = 0."""
    positive = y > 0
    count = jnp.where(positive, y, 1)
    return jnp.where(positive, count - count * jnp.log(count) + gammaln(count + 1), 0)


FAMILY = Family(
    "poisson",
    links=("log",),
    likelihood=lambda link, classes, noise: Poisson(),
    other_names=("count",),
)


def poisson_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    *,
    response: str | None = None,
    weights: ArrayLike | str | None = None,
    offset: ArrayLike | str | None = None,
) -> ModelPosterior:
    """Bayesian Poisson regression with log link, θ_j ~ N(0, prior_variance).

    The gradients are not Lipschitz, so adaptive sizes and Lipschitz weights do not apply.

    **Arguments:** those of `logistic_regression`; `y` is a count (0, 1, 2, …) per row.

    **Returns:** a posterior with the parameter `beta`.
    """
    return FAMILY.regression(X, y, prior_variance, response, weights, offset)
