"""Means and standard deviations of draws, in pieces: more draws need no more memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

_BYTES_AT_ONCE = 2**23


def pieces(
    positions: Float[np.ndarray, "chains draws d"],
) -> Iterator[Float[np.ndarray, "chains n d"]]:
    """The draws in order and in float64, as pieces of bounded size."""
    chains, draws, dim = positions.shape
    at_once = max(1, _BYTES_AT_ONCE // max(8 * chains * dim, 1))
    for first in range(0, draws, at_once):
        yield positions[:, first : first + at_once].astype(np.float64)


def by_parameter(
    of: Callable[[Float[np.ndarray, "chains draws k"]], np.ndarray],
    positions: Float[np.ndarray, "chains draws d"],
) -> Float[np.ndarray, " d"]:
    """Apply `of` to all draws of a few parameters at a time, in float64."""
    chains, draws, dim = positions.shape
    at_once = max(1, 16 * _BYTES_AT_ONCE // max(8 * chains * draws, 1))
    values = [
        of(positions[:, :, first : first + at_once].astype(np.float64))
        for first in range(0, dim, at_once)
    ]
    return np.concatenate(values)


class Moments(NamedTuple):
    """Moments of all draws, and the extent of each chain."""

    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]
    extent: Float[np.ndarray, "chains d"]
    """Largest minus smallest value, per chain."""


def moments(
    positions: Float[np.ndarray, "chains draws d"],
    weights: Float[np.ndarray, "chains draws"] | None = None,
) -> Moments:
    """The moments of all draws, updated piece by piece (Chan et al., 1983).

    **Arguments:**

    - `positions`: the draws.
    - `weights`: one weight per draw; None if all draws count the same.

    **Returns:** a `Moments`. The sd is that of the draws as a population.

    >>> draws = np.random.default_rng(0).normal(size=(2, 1000, 3))
    >>> found = moments(draws)
    >>> bool(np.allclose(found.mean, draws.mean(axis=(0, 1))))
    True
    >>> bool(np.allclose(found.sd, draws.std(axis=(0, 1))))
    True
    """
    chains, draws, dim = positions.shape
    weights = np.ones((chains, draws)) if weights is None else weights
    count, mean, squares, first = 0.0, np.zeros(dim), np.zeros(dim), 0
    low, high = np.full((chains, dim), np.inf), np.full((chains, dim), -np.inf)
    for piece in pieces(positions):
        w = weights[:, first : first + piece.shape[1], None]
        new, first = float(w.sum()), first + piece.shape[1]
        piece_mean = (w * piece).sum(axis=(0, 1)) / new
        change, total = piece_mean - mean, count + new
        squares += (w * (piece - piece_mean) ** 2).sum(axis=(0, 1))
        squares += change**2 * count * new / total
        mean, count = mean + change * new / total, total
        low, high = np.minimum(low, piece.min(axis=1)), np.maximum(high, piece.max(axis=1))
    return Moments(mean, np.sqrt(squares / (count or 1.0)), high - low)
