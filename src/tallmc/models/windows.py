"""A series as rows: windows that do not overlap, each with a buffer of its neighbours.

    y_1 … y_T  →  n = ⌈T/L⌉ windows of L observations;   row = [B before | L | B after]

Only the observations of the window count. Those of the buffer tell what state the window starts
in, and, with messages from both sides, what state it ends in. The rows need (L + B)/L of the memory
of the series. What lies outside of the series is NaN, like a missing observation, and `time` tells
the two apart.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput


class SeriesPieces(NamedTuple):
    """Pieces of a series: a window and its buffer per row."""

    y: Float[Array | np.ndarray, "*n l p"]
    """The observations of each piece; NaN where one is missing or outside of the series."""
    time: Int[Array | np.ndarray, "*n"]
    """The place in the series of the first observation of the window, counted from 0."""


def checked_series(values: Any) -> Float[np.ndarray, "T p"]:
    """A series as a matrix, one line per time; raises unless it is numbers or NaN."""
    found = np.asarray(check_numeric("y", values))
    if found.ndim not in (1, 2) or 0 in found.shape:
        rule = "be a series: a vector, or a matrix with one line per time"
        raise InvalidInput("y", rule, f"shape {found.shape}")
    floats = found if found.dtype == np.float32 else found.astype(jnp.result_type(float))
    if np.isinf(floats).any():
        raise InvalidInput("y", "be finite, or NaN where an observation is missing", "infinity")
    empty = np.isnan(floats).reshape(len(floats), -1).all(axis=0)
    if empty.any():
        raise InvalidInput("y", "have observations in each column", "only NaN")
    return floats.reshape(len(floats), -1)


def pieces_at(
    y: Float[np.ndarray, "T p"],
    times: Int[np.ndarray, " n"],
    window: int,
    before: int,
    after: int,
) -> SeriesPieces:
    """The pieces whose windows start at `times`."""
    places = times[:, None] + np.arange(-before, window + after)
    inside = (places >= 0) & (places < len(y))
    found = y[np.clip(places, 0, len(y) - 1)]
    found[~inside] = np.nan
    return SeriesPieces(found, times.astype(np.int32))


def window_times(n_times: int, window: int) -> Int[np.ndarray, " n"]:
    """Where the windows of a series start."""
    return np.arange(0, n_times, window)


def series_of(pieces: SeriesPieces, n_times: int, window: int, before: int) -> np.ndarray:
    """The series again, from all of its windows in order."""
    windows = np.asarray(pieces.y)[:, before : before + window]
    return windows.reshape(-1, windows.shape[-1])[:n_times]
