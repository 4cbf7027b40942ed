"""Integer alias tables (Walker, Vose): draws from fixed weights, O(N) to build and O(1) per draw.

Probabilities are rounded once to integers P_i with Σ P_i = M 2³². There are M = 2^k ≥ N cells of
2³² units. Cell c has `threshold[c]` units of row c; its other units belong to row `alias[c]`. A
draw uses k bits for the cell and 32 bits for the place in the cell, so the realised law is
*exactly* p_i = P_i / (M 2³²). The importance weights use these p_i. Every row with P_i ≥ 1 can be
drawn, and rounding causes no bias. A row of probability zero has P_i = 0 and is never drawn.

One sweep fills the table. The current heavy row (P ≥ 2³²) fills light rows until it is light
itself; the next heavy row then fills it. Let D be the running sum of deficits and E the running
sum of excesses. Light row j + 1 is filled by the first heavy row m with E_m ≥ D_j, so the sweep is
one sorted look-up without a loop.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CELL = 2**32


class AliasTable(NamedTuple):
    """An alias table and the law that it realises."""

    threshold: np.ndarray  # (M,) uint32
    alias: np.ndarray  # (M,) int32
    probability: np.ndarray  # (N,) float64, the realised law


def alias_table(probability: np.ndarray) -> AliasTable:
    """The alias table of a probability vector."""
    units = _integer_probabilities(probability)
    n_cells = len(units)
    threshold = np.full(n_cells, CELL - 1, np.uint32)
    alias = np.arange(n_cells, dtype=np.int32)

    light, heavy = np.flatnonzero(units < CELL), np.flatnonzero(units >= CELL)
    deficit, excess = np.cumsum(CELL - units[light]), np.cumsum(units[heavy] - CELL)
    threshold[light] = units[light]
    # The light row with which each heavy row is exhausted; the light rows after it are filled by
    # the next heavy row. There are fewer heavy rows than light ones, hence fewer look-ups.
    exhausted_by = np.searchsorted(deficit, excess, side="right")
    exhausted_before = np.cumsum(np.bincount(exhausted_by + 1, minlength=len(light) + 1))
    alias[light] = heavy[exhausted_before[: len(light)]]

    # A heavy row that ends below one cell is topped up by the next heavy row. The last heavy row
    # ends with exactly one cell of units.
    topped_up = np.flatnonzero(exhausted_by < len(light))
    threshold[heavy[topped_up]] = CELL + excess[topped_up] - deficit[exhausted_by[topped_up]]
    alias[heavy[topped_up]] = heavy[topped_up + 1]
    n_rows = len(probability)
    return AliasTable(threshold, alias, units[:n_rows] / (n_cells * CELL))


def _integer_probabilities(probability: np.ndarray) -> np.ndarray:
    """P_i with Σ P_i = M 2³² exactly, and P_i ≥ 1 where p_i > 0. Padded with zeros to length M."""
    n_rows = len(probability)
    is_possible = probability > 0
    possible = slice(0, n_rows) if is_possible.all() else np.flatnonzero(is_possible)
    n_possible = int(np.count_nonzero(is_possible))
    n_cells = 1 << (n_rows - 1).bit_length() if n_rows > 1 else 2
    total = n_cells * CELL
    units = np.zeros(n_cells, np.int64)
    units[possible] = np.maximum(probability[possible] * (total / probability.sum()), 1)
    missing = total - int(units.sum())
    if missing >= 0:
        each, rest = divmod(missing, n_possible)
        units[possible] += each
        units[np.flatnonzero(is_possible)[:rest]] += 1
    else:
        units[np.argmax(units)] += missing
    return units
