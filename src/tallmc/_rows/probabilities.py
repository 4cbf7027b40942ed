"""Probabilities of rows from weights, and the certain rows, which are in every step.

A row with expected count n p_i ≥ 1 can be in every step of n rows (classical survey sampling).
Taking a row out raises the expected counts of the other rows, so this is repeated until no further
row qualifies. The certain rows are always those with the largest probabilities.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float, Int

from .._core.arrays import check_numeric
from .._core.errors import InvalidInput, check_number
from .law import AbstractStream

# Least share of a step's rows that are random draws, so that rows with low weight still occur.
_LEAST_RANDOM_SHARE = 0.25


class PreferentialStream(NamedTuple):
    """Draws in proportion to weights."""

    stream: AbstractStream  # draws of the rows that are not certain
    certain: Int[np.ndarray, " a"]  # the rows that are in every step


def probabilities(weights: ArrayLike, floor: float) -> np.ndarray:
    """p_i = (1 − δ) w_i/Σw + δ/N with δ = `floor`, so that no weight 1/(N p_i) exceeds 1/δ."""
    check_number("floor", floor, 0, 1)
    raw = np.asarray(check_numeric("preferential weights", weights), np.float64)
    if raw.ndim != 1 or not raw.size:
        rule = "be a vector, one number per row"
        raise InvalidInput("preferential weights", rule, f"shape {raw.shape}")
    bad = ~np.isfinite(raw) | (raw < 0)
    if bad.any():
        found = f"{raw[np.argmax(bad)]:g} in row {np.argmax(bad)}"
        raise InvalidInput("preferential weights", "be finite and not negative", found)
    total = raw.sum()
    if floor == 0 and not (raw > 0).all():
        check_drawn(int(np.argmin(raw)))
    share = raw / total if total > 0 else np.full(len(raw), 1 / len(raw))
    return (1 - floor) * share + floor / len(raw)


def check_drawn(row: int | None) -> None:
    if row is not None:
        raise InvalidInput(
            "preferential weights",
            "be strictly positive",
            f"p = 0 in row {row}, which would never be drawn and would bias the gradient",
            "Pass floor=0.05 to mix in uniform weights.",
        )


def most_certain(size: int) -> int:
    """The largest number of certain rows in steps of `size` rows."""
    # At least two rows are random draws: the noise cannot be estimated from a single draw.
    return max(0, min(size - 2, int(size * (1 - _LEAST_RANDOM_SHARE) + 0.5)))


def count_certain(largest: Float[np.ndarray, " k"], total: float, size: int) -> int:
    """How many of the rows with the largest probabilities are in every step of `size` rows.

    `largest` are these probabilities in decreasing order, up to a factor; `total` is the sum of
    all probabilities, up to the same factor.
    """
    certain = 0
    while True:
        rest = total - largest[:certain].sum()
        new = np.count_nonzero(largest[certain:] * (size - certain) >= rest)
        if not new:
            return certain
        certain += int(new)


def certain_rows(probability: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows that are in every step of `size` rows, and the law of the other draws."""
    most = max(0, min(most_certain(size), int(np.count_nonzero(probability)) - 1))
    order = np.argpartition(-probability, most)[:most] if most else np.zeros(0, int)
    order = order[np.lexsort((order, -probability[order]))]
    count = count_certain(probability[order], probability.sum(), size)
    certain = np.sort(order[:count])
    rest = probability.copy()
    rest[certain] = 0
    return certain, rest / rest.sum()


def drawn_in_proportion(
    sizes: Float[np.ndarray, " N"], count: int, start: float | None = None
) -> tuple[np.ndarray, Float[np.ndarray, " n"]]:
    """Numbers of about `count` rows with π_i = min(1, c · size_i), and their weights 1/π_i.

    A systematic sample from a `start` in [0, 1), random by default: no row is drawn twice, and a
    row with π = 1 is drawn for certain.
    """
    positive = np.flatnonzero(sizes > 0)
    if count >= len(positive):
        return positive, np.ones(len(positive))
    of = sizes[positive]
    certain = np.zeros(len(of), bool)
    while True:  # taking the certain rows out raises the chances of the others
        left = count - np.count_nonzero(certain)
        chance = left / np.sum(of, where=~certain, dtype=np.float64) * of
        if not (chance[~certain] >= 1).any():
            break
        certain |= chance >= 1
    chance[certain] = 1
    drawn = systematic_sample(chance, np.random.default_rng(0).random() if start is None else start)
    return positive[drawn], 1 / chance[drawn]


def systematic_sample(chances: Float[np.ndarray, " n"], start: float) -> Int[np.ndarray, " k"]:
    """Places drawn with these probabilities, from a `start` in [0, 1)."""
    at = np.cumsum(chances, dtype=np.float64)
    ticks = np.arange(start, at[-1])
    return np.minimum(np.searchsorted(at, ticks), len(at) - 1)
