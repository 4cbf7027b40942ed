"""How well draws predict rows that were held out: the log-loss, minus a log likelihood a row, in nats.

    of each draw        ℓ(θ_k) = −(1/|T|) Σ_{i∈T} log p(y_i | x_i, θ_k)      nemeth-2021, section 6.1; putcha-2023, section 5.2.2
    of their mixture    −(1/|T|) Σ_{i∈T} log[(1/K) Σ_k p(y_i | x_i, θ_k)]    the posterior predictive

The second is at most the mean of the first, of which the papers' figures and tables are. What a model leaves out of its
likelihood because it does not depend on θ, as linear and Poisson regression do here, is missing: a constant, the same for all
draws and methods.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._arrays import check_numeric
from .._errors import InvalidInput
from .._posterior import AbstractPosterior
from .._rows import Sum, count_rows, map_rows, split_sum, sum_rows
from ..models.glm import Observations

_AT_ONCE = 64  # draws that share a pass


def log_losses(positions: ArrayLike, posterior: AbstractPosterior, rows: PyTree[ArrayLike]) -> Float[np.ndarray, "*k"]:
    """The log-loss of each of `positions` (*k, d) on `rows`, which are like the posterior's `data`: (X, y) for a regression.

    >>> import tallmc
    >>> posterior = tallmc.models.logistic_regression([[1.0], [2.0]], [0, 1], prior_variance=10.0)
    >>> log_losses([[0.0], [1.0]], posterior, ([[1.0], [-1.0]], [1, 1])).round(3)
    array([0.693, 0.813])
    """
    at = _checked_positions(positions, posterior)
    held_out = _checked_rows(rows, posterior)
    totals = _loss_sums(posterior, at.reshape(-1, posterior.dim), held_out).float64()
    return totals.reshape(at.shape[:-1]) / count_rows(held_out)


def log_loss(positions: ArrayLike, posterior: AbstractPosterior, rows: PyTree[ArrayLike]) -> float:
    """The log-loss on `rows` of the posterior predictive, the mixture of all `positions` (*k, d).

    >>> import tallmc
    >>> posterior = tallmc.models.logistic_regression([[1.0], [2.0]], [0, 1], prior_variance=10.0)
    >>> round(log_loss([[0.0], [1.0]], posterior, ([[1.0], [-1.0]], [1, 1])), 3)
    0.721
    """
    at = _checked_positions(positions, posterior)
    losses = _mixture_losses(posterior, at.reshape(-1, posterior.dim), _checked_rows(rows, posterior))
    return float(np.asarray(losses, np.float64).mean())


@eqx.filter_jit
def _loss_sums(posterior: AbstractPosterior, positions: Float[Array, "K d"], rows: PyTree[Array]) -> Sum:
    def of_draw(position: Float[Array, " d"]) -> Sum:
        total = sum_rows(lambda block: split_sum(posterior.row_potentials(position, block)), rows, posterior.width)
        (high, lost), (low, lost_low) = total.high, total.low
        return Sum(high, low + (lost + lost_low))

    return lax.map(of_draw, positions, batch_size=_AT_ONCE)


@eqx.filter_jit
def _mixture_losses(posterior: AbstractPosterior, positions: Float[Array, "K d"], rows: PyTree[Array]) -> Float[Array, " n"]:
    K = positions.shape[0]

    def of_rows(block: PyTree[Array]) -> Float[Array, " b"]:
        potentials = jax.vmap(posterior.row_potentials, in_axes=(0, None))(positions, block)
        return jnp.log(K) - logsumexp(-potentials, axis=0)

    return map_rows(of_rows, rows, max(posterior.width, K))


def _checked_positions(positions: ArrayLike, posterior: AbstractPosterior) -> Float[Array, "*k d"]:
    values = check_numeric("positions", positions)
    if not values.ndim or values.shape[-1] != posterior.dim or not values.size:
        raise InvalidInput("positions", f"have {posterior.dim} coordinates along the last axis", f"shape {values.shape}")
    if not np.isfinite(np.asarray(values)).all():
        cure = "Leave out chains that failed: draws.positions[draws.ok]."
        raise InvalidInput("positions", "be finite", "NaN or infinity", cure)
    return jnp.asarray(values, posterior.dtype)


def _checked_rows(rows: PyTree[ArrayLike], posterior: AbstractPosterior) -> PyTree[Array]:
    """The rows as arrays, in the structure of the posterior's own."""
    own = posterior.data
    try:
        given = Observations(*rows) if isinstance(own, Observations) else rows
        columns = jax.tree.map(lambda like, column: jnp.asarray(check_numeric("rows", column), like.dtype), own, given)
    except InvalidInput:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInput("rows", "have the structure of the posterior's data", str(error)) from None
    shapes, own_shapes = ([leaf.shape for leaf in jax.tree.leaves(tree)] for tree in (columns, own))
    lengths, of_a_row = {shape[:1] for shape in shapes}, [shape[1:] for shape in own_shapes]
    if [shape[1:] for shape in shapes] != of_a_row or len(lengths) != 1 or lengths <= {(), (0,)}:
        raise InvalidInput("rows", f"be arrays of one length, whose rows have shapes {of_a_row}", f"shapes {shapes}")
    return columns
