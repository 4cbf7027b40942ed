"""∇f at many positions: exact, or estimated from rows drawn for each position.

Exact gradients of many positions share a pass over the rows.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..core.random import new_key
from ..gradient.base import AbstractGradient
from ..gradient.row_sums import block_gradient_sums
from ..models.posterior import AbstractPosterior
from ..rows.base import AbstractRows
from ..rows.batch import RowDraws
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
    thetas = np.asarray(positions, posterior.dtype)
    gradients = []
    for first in range(0, len(thetas), _POSITIONS_PER_PASS):
        some = thetas[first : first + _POSITIONS_PER_PASS]
        # Each number of positions would compile another program: use powers of two.
        padded_length = 1 << (len(some) - 1).bit_length()
        padded = jnp.asarray(np.resize(some, (padded_length, posterior.dim)))
        total = posterior.rows.reduce(
            block_gradient_sums, posterior.model, padded, width=posterior.width
        )
        gradients.append(total.float64()[: len(some)])
    prior = jax.vmap(posterior.model.prior_gradient)(jnp.asarray(thetas))
    return np.concatenate(gradients) + np.asarray(prior, np.float64)


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
