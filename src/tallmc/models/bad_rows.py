"""Find the row whose likelihood is not finite, so that a message can name it."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from ..rows.base import RowBlock
from .base import AbstractModel
from .posterior import AbstractPosterior


def first_bad_row(posterior: AbstractPosterior, position: ArrayLike) -> int | None:
    """The first row whose potential or gradient is not finite, in one pass over all rows.

    **Arguments:**

    - `posterior`: the posterior.
    - `position`: a flat vector.

    **Returns:** the number of the row, counted from 0. None if every row is finite: the cause is
    then the prior, or the sum of the rows is too large for the precision.

    >>> import jax.numpy as jnp, tallmc
    >>> posterior = tallmc.Posterior(
    ...     log_likelihood=lambda rate, time: jnp.log(rate) - rate * time,
    ...     log_prior=lambda rate: 0.0,
    ...     data=jnp.array([1.0, jnp.nan, 2.0]),
    ...     init=1.0,
    ... )
    >>> first_bad_row(posterior, posterior.init)
    1
    """
    at = jnp.asarray(position, posterior.dtype)
    return posterior.rows.first_where(_is_bad, posterior.model, at, width=posterior.width)


def _is_bad(
    rows: RowBlock, model: AbstractModel, position: Float[Array, " d"]
) -> Bool[Array, " n"]:
    gradients = model.expand(model.row_gradients(position, rows), rows)
    finite = jnp.all(jnp.isfinite(gradients), axis=1)
    return ~(finite & jnp.isfinite(model.row_potentials(position, rows)))
