"""∇f at many positions: exact, in passes over the rows that many positions share, or from a few rows drawn for each."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from .._posterior import AbstractPosterior
from .._random import new_key
from .._rows import Sum, take_rows
from ..gradient.base import AbstractGradient, Batch
from ..subsample.selection import AbstractStaticSelection, Picks

_AT_ONCE = 64  # positions that share a pass


def exact_gradients(posterior: AbstractPosterior, positions: ArrayLike) -> Float[np.ndarray, "K d"]:
    """∇f from all rows at each of `positions` (K, d).

    >>> import tallmc
    >>> posterior = tallmc.models.linear_regression([[1.0], [1.0]], [1.0, 3.0], prior_variance=1e6)
    >>> exact_gradients(posterior, [[0.0], [2.0]]).round(3)
    array([[-4.],
           [ 0.]])
    """
    return _exact(posterior, jnp.asarray(positions, posterior.dtype)).float64()


def stochastic_gradients(
    gradient: AbstractGradient, selection: AbstractStaticSelection, positions: ArrayLike, seed: int = 0
) -> Float[np.ndarray, "K d"]:
    """The estimate of `gradient` at each of `positions` (K, d), from rows that `selection` draws for it alone."""
    at = jnp.asarray(positions, gradient.posterior.dtype)
    return np.asarray(_stochastic(gradient, selection, at, new_key(seed)), np.float64)


@eqx.filter_jit
def _exact(posterior: AbstractPosterior, positions: Float[Array, "K d"]) -> Sum:
    total = lax.map(posterior.potential_and_gradient_sum, positions, batch_size=_AT_ONCE)
    return Sum(total.high[1], total.low[1])


@eqx.filter_jit
def _stochastic(
    gradient: AbstractGradient, selection: AbstractStaticSelection, positions: Float[Array, "K d"], key: PRNGKeyArray
) -> Float[Array, "K d"]:
    def estimate(pair: tuple[Float[Array, " d"], Picks]) -> Float[Array, " d"]:
        position, picks = pair
        return gradient(position, Batch(take_rows(gradient.posterior.data, picks.indices), picks.weights, picks.indices))

    return lax.map(estimate, (positions, selection.supply(key, positions.shape[0])), batch_size=_AT_ONCE)
