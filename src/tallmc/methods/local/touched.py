"""The groups that a batch of rows touches.

A batch of n rows touches at most n groups of a kind. Each touched group has one *slot* among n: the
position of its last row in the batch. Rows of the same group share its slot, so that their
gradients add up and the group gets one noise. A table with one number per group finds the slots in
a time proportional to n: the rows write their positions into the table, read them again, and clear
them. On a CPU this takes microseconds; sorting the numbers of the groups takes a hundred times as
long in XLA.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

NO_ROW = -1


class TouchedGroups(eqx.Module):
    """The groups of one kind that a batch touches."""

    slots: Int[Array, " n"]
    """The group in each slot; the number of all groups if the slot is empty."""
    of_rows: Int[Array, " n"]
    """The slot of each row."""


def touched_groups(
    numbers: Int[Array, " n"], scratch: Int[Array, " groups"]
) -> tuple[TouchedGroups, Int[Array, " groups"]]:
    """The touched groups, from the group of each row, and the table as it was.

    **Arguments:**

    - `numbers`: the group of each row.
    - `scratch`: a table with `NO_ROW` for every group.

    >>> touched, scratch = touched_groups(jnp.array([7, 2, 7]), jnp.full(9, NO_ROW, int))
    >>> touched.slots, touched.of_rows
    (Array([9, 2, 7], dtype=int32), Array([2, 1, 2], dtype=int32))
    """
    at = jnp.arange(numbers.shape[0], dtype=scratch.dtype)
    written = scratch.at[numbers].max(at)
    of_rows = written[numbers]
    slots = jnp.where(of_rows == at, numbers, scratch.shape[0]).astype(jnp.int32)
    # The minimum is NO_ROW. It depends on what was read, so XLA clears the table after reading it;
    # otherwise XLA would copy the table.
    cleared = jnp.minimum(of_rows, NO_ROW)
    return TouchedGroups(slots, of_rows), written.at[numbers].set(cleared)


def touch_probabilities(
    probabilities: Float[np.ndarray, " N"], numbers: Int[Any, " N"], count: int, size: int
) -> Float[np.ndarray, " groups"]:
    """q_g = 1 − (1 − Σ_{i∈g} p_i)ⁿ, the probability that n draws touch the group.

    >>> touch_probabilities(np.full(4, 0.25), np.array([0, 0, 0, 1]), 2, size=2)
    array([0.9375, 0.4375])
    """
    shares = np.bincount(np.asarray(numbers), np.asarray(probabilities, np.float64), count)
    with np.errstate(divide="ignore"):
        return -np.expm1(size * np.log1p(-np.minimum(shares, 1.0)))
