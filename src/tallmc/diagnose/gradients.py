"""∇f at many positions: exact, or estimated from rows drawn for each position.

Exact gradients of many positions share a pass over the rows.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..core.random import new_key
from ..gradient.base import AbstractGradient
from ..models.posterior import AbstractPosterior
from ..rows.base import AbstractRows
from ..rows.batch import RowDraws
from ..rows.sums import Sum
from ..subsample.selection import AbstractStaticSelection

_POSITIONS_PER_PASS = 64


def exact_gradients(posterior: AbstractPosterior, positions: ArrayLike) -> Float[np.ndarray, "K d"]:
    """∇f from all rows at each of `positions`.

    **Arguments:**

    - `posterior`: the posterior with potential f.
    - `positions`: an array of shape (K, d).

    **Returns:** the gradients in float64, of shape (K, d).

    >>> import tallmc
    >>> X, y = [[1.0], [1.0]], [1.0, 3.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1e6, noise_variance=1.0)
    >>> exact_gradients(posterior, [[0.0], [2.0]]).round(3)
    array([[-4.],
           [ 0.]])
    """
    return _exact(posterior, jnp.asarray(positions, posterior.dtype)).float64()


def stochastic_gradients(
    gradient: AbstractGradient,
    selection: AbstractStaticSelection,
    source: AbstractRows,
    positions: ArrayLike,
    seed: int = 0,
) -> Float[np.ndarray, "K d"]:
    """Estimates of ∇f at each of `positions` (K, d); each uses its own rows from `selection`."""
    thetas = jnp.asarray(positions, gradient.model.dtype)
    return np.asarray(_stochastic(gradient, selection, source, thetas, new_key(seed)), np.float64)


@eqx.filter_jit
def _exact(posterior: AbstractPosterior, positions: Float[Array, "K d"]) -> Sum:
    def at_position(position: Float[Array, " d"]) -> Sum:
        return posterior.model.potential_and_gradient(position, posterior.rows)

    total = lax.map(at_position, positions, batch_size=_POSITIONS_PER_PASS)
    return Sum(total.high[1], total.low[1])


@eqx.filter_jit
def _stochastic(
    gradient: AbstractGradient,
    selection: AbstractStaticSelection,
    source: AbstractRows,
    positions: Float[Array, "K d"],
    key: PRNGKeyArray,
) -> Float[Array, "K d"]:
    def estimate(pair: tuple[Float[Array, " d"], RowDraws]) -> Float[Array, " d"]:
        position, drawn = pair
        return gradient(position, source.complete(source.gather(drawn)))

    row_draws = selection.draw(key, positions.shape[0])
    return lax.map(estimate, (positions, row_draws), batch_size=_POSITIONS_PER_PASS)
