"""Means and standard deviations over steps, of parameters that seldom change.

A group keeps its parameters until a step touches it. Its average over steps is therefore updated
when the group is touched, with the number of steps that the old values have lasted (West, 1979):

    W' = W + w,   m' = m + (w/W')(z − m),   S' = S + w (z − m)(z − m')

The cost of a step is proportional to the touched groups, not to all groups.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class GroupMoments(NamedTuple):
    """Means and standard deviations of the parameters of all groups of one kind.

    They are averages over all steps after burn-in of all chains that completed.
    """

    mean: Float[np.ndarray, "groups ..."]
    sd: Float[np.ndarray, "groups ..."]
    mean_error: Float[np.ndarray, "groups ..."]
    """Standard error of `mean`, from the means of the chains; NaN for a single chain."""

    @classmethod
    def pooled(
        cls,
        means: Float[np.ndarray, "chains groups ..."],
        variances: Float[Any, "chains groups ..."],
    ) -> GroupMoments:
        """The moments of all chains together.

        >>> GroupMoments.pooled(np.array([[1.0], [3.0]]), np.array([[2.0], [2.0]])).sd ** 2
        array([3.])
        """
        chains = len(means)
        between = means.var(axis=0)
        error = (
            np.sqrt(between / (chains - 1))
            if chains > 1
            else np.full(means.shape[1:], np.nan, means.dtype)
        )
        return cls(means.mean(axis=0), np.sqrt(variances.mean(axis=0) + between), error)


def extended(
    mean: Float[Any, "*k"],
    squares: Float[Any, "*k"],
    values: Float[Any, "*k"],
    lasted: Any,
    after: Any,
) -> tuple[Array, Array]:
    """m' and S' of `after` steps, of which the last `lasted` had these values.

    >>> mean, squares = extended(np.ones(1), np.zeros(1), values=np.full(1, 4.0), lasted=1, after=3)
    >>> float(mean[0]), float(squares[0])  # of 1, 1 and 4
    (2.0, 6.0)
    """
    move = values - mean
    new = mean + lasted / jnp.maximum(after, 1) * move
    return new, squares + lasted * move * (values - new)
