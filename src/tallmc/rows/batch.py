"""Row draws, and the batch of rows that belongs to them."""

from __future__ import annotations

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, Int, PyTree


class RowDraws(eqx.Module):
    """Row numbers and their weights.

    **Arguments:**

    - `indices`: row numbers.
    - `weights`: w_i, which is 1/(n p_i) for n draws with replacement.

    >>> import jax.numpy as jnp
    >>> RowDraws(jnp.array([7, 2]), jnp.array([50.0, 50.0])).indices
    Array([7, 2], dtype=int32)
    """

    indices: Int[Array, "*k n"]
    weights: Float[Array, "*k n"]


class Batch(eqx.Module):
    """The rows that a step uses.

    **Arguments:**

    - `rows`: a pytree of arrays with a leading axis for the rows.
    - `weights`: w_i, the weight of each row in the estimate of the sum over all rows.
    - `indices`: row numbers, for estimators that store something per row.
    - `packed`: all rows in the layout of the fused GPU kernel, which reads rows itself.

    >>> import jax.numpy as jnp
    >>> Batch({"x": jnp.ones((2, 3))}, weights=jnp.full(2, 50.0)).n_rows
    2
    """

    rows: PyTree[Any]
    weights: Float[Any, "*k n"]
    indices: Int[Any, "*k n"] | None = None
    packed: Float[Array, "N c"] | None = None

    @property
    def n_rows(self) -> int:
        """How many rows the batch has."""
        return self.weights.shape[-1]

    def with_weights(self, weights: Float[Any, "*k n"]) -> Batch:
        """The same rows with other weights."""
        return Batch(self.rows, weights, self.indices, self.packed)
