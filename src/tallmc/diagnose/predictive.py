"""Log-loss of draws on held-out rows: the negative log likelihood per row, in nats.

    of each draw        ℓ(θ_k) = −(1/|T|) Σ_{i∈T} log p(y_i | x_i, θ_k)
    of their mixture    −(1/|T|) Σ_{i∈T} log[(1/K) Σ_k p(y_i | x_i, θ_k)]

The mixture is the posterior predictive. Its log-loss is at most the mean log-loss of the draws. The
figures and tables of the papers show the log-loss of each draw (nemeth-2021, section 6.1;
putcha-2023, section 5.2.2).

A model may omit terms of its likelihood that do not depend on θ, as linear and Poisson regression
do here. The log-loss then lacks a constant, which is the same for all draws and methods.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput
from ..models.base import AbstractModel
from ..models.new_rows import rows_like
from ..models.posterior import AbstractPosterior
from ..rows.base import RowBlock
from ..rows.resident import ResidentRows
from ..rows.sums import Sum, split_sum

_DRAWS_PER_PASS = 64


def log_losses(
    positions: ArrayLike, posterior: AbstractPosterior, rows: PyTree[ArrayLike]
) -> Float[np.ndarray, "*k"]:
    """Log-loss of each draw on held-out rows.

    **Arguments:**

    - `positions`: the draws, of shape (*k, d).
    - `posterior`: the posterior whose model defines the likelihood.
    - `rows`: held-out rows with the structure of the posterior's `data`; (X, y) for a regression.

    **Returns:** one log-loss per draw, of shape (*k).

    **Raises:** `InvalidInput` if `positions` are not finite, or if shapes do not match.

    >>> import tallmc
    >>> posterior = tallmc.models.logistic_regression([[1.0], [2.0]], [0, 1], prior_variance=10.0)
    >>> log_losses([[0.0], [1.0]], posterior, ([[1.0], [-1.0]], [1, 1])).round(3)
    array([0.693, 0.813])
    """
    draws = checked_positions(positions, posterior)
    held_out = ResidentRows(rows_like(posterior.rows.row_shapes, rows))
    totals = _loss_sums(posterior.model, draws.reshape(-1, posterior.dim), held_out).float64()
    return totals.reshape(draws.shape[:-1]) / held_out.n_rows


def log_loss(positions: ArrayLike, posterior: AbstractPosterior, rows: PyTree[ArrayLike]) -> float:
    """Log-loss of the posterior predictive, the mixture of all draws, on held-out rows.

    **Arguments:**

    - `positions`: the draws, of shape (*k, d).
    - `posterior`: the posterior whose model defines the likelihood.
    - `rows`: held-out rows with the structure of the posterior's `data`; (X, y) for a regression.

    **Returns:** the log-loss.

    **Raises:** `InvalidInput` if `positions` are not finite, or if shapes do not match.

    >>> import tallmc
    >>> posterior = tallmc.models.logistic_regression([[1.0], [2.0]], [0, 1], prior_variance=10.0)
    >>> round(log_loss([[0.0], [1.0]], posterior, ([[1.0], [-1.0]], [1, 1])), 3)
    0.721
    """
    draws = checked_positions(positions, posterior).reshape(-1, posterior.dim)
    held_out = ResidentRows(rows_like(posterior.rows.row_shapes, rows))
    width = max(posterior.model.width(held_out), len(draws))
    losses = held_out.map(_mixture_losses, posterior.model, draws, width=width)
    return float(np.asarray(losses, np.float64).mean())


@eqx.filter_jit
def _loss_sums(model: AbstractModel, positions: Float[Array, "K d"], rows: ResidentRows) -> Sum:
    def loss_of_draw(position: Float[Array, " d"]) -> Sum:
        return rows.reduce(
            _block_loss, model, position, width=model.width(rows), finish=_merge_parts
        )

    return lax.map(loss_of_draw, positions, batch_size=_DRAWS_PER_PASS)


def _block_loss(
    rows: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Float[Array, " d"]
) -> tuple[Array, Array]:
    return split_sum(jnp.where(counted, model.row_potentials(position, rows), 0))


def _merge_parts(total: Sum, model: AbstractModel, position: Float[Array, " d"]) -> Sum:
    """One `Sum` from the compensated sums of the two parts of `split_sum`."""
    (high, remainder), (low, remainder_low) = total.high, total.low
    return Sum(high, low + (remainder + remainder_low))


def _mixture_losses(
    rows: RowBlock, model: AbstractModel, positions: Float[Array, "K d"]
) -> Float[Array, " n"]:
    potentials = jax.vmap(model.row_potentials, in_axes=(0, None))(positions, rows)
    return jnp.log(positions.shape[0]) - logsumexp(-potentials, axis=0)


def checked_positions(positions: ArrayLike, posterior: AbstractPosterior) -> Float[Array, "*k d"]:
    """Draws in the precision of the posterior; raises unless they are finite and of its size."""
    values = check_numeric("positions", positions)
    if not values.ndim or values.shape[-1] != posterior.dim or not values.size:
        raise InvalidInput(
            "positions",
            f"have {posterior.dim} coordinates along the last axis",
            f"shape {values.shape}",
        )
    if not np.isfinite(np.asarray(values)).all():
        cure = "Leave out chains that failed: draws.positions[draws.ok]."
        raise InvalidInput("positions", "be finite", "NaN or infinity", cure)
    return jnp.asarray(values, posterior.dtype)
