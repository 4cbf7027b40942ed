"""Σ ∇f_i over all rows at the positions of several chains, in one shared pass."""

from __future__ import annotations

import jax
from jaxtyping import Array, Bool, Float

from ..models.base import AbstractModel
from ..rows.base import AbstractRows, RowBlock
from ..rows.batch import Batch
from ..rows.sums import Sum


def row_gradient_sums(
    model: AbstractModel, positions: Float[Array, "chains d"], source: AbstractRows
) -> Float[Array, "chains d"]:
    """Σ ∇f_i(θ) at each position, without the prior."""
    return source.reduce(
        block_gradient_sums, model, positions, width=model.width(source), finish=_rounded
    )


def block_gradient_sums(
    rows: RowBlock,
    counted: Bool[Array, " n"],
    model: AbstractModel,
    positions: Float[Array, "chains d"],
) -> Float[Array, "chains d"]:
    """Σ ∇f_i(θ) over a block of rows, at each position."""
    batch = Batch(rows, counted.astype(model.dtype))
    return jax.vmap(lambda position: model.sum_remainders(0, position, position, batch))(positions)


def _rounded(
    total: Sum, model: AbstractModel, positions: Float[Array, "chains d"]
) -> Float[Array, "chains d"]:
    return total.rounded()
