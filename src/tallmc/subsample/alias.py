"""Integer alias tables (Walker, Vose): draws from fixed weights, O(N) once and O(1) a draw.

Probabilities are rounded once to integers P_i with Σ P_i = M 2³², M = 2^k ≥ N cells of 2³² units each. A cell c holds
`threshold[c]` units of row c and the rest of row `alias[c]`. A draw takes k bits for the cell and 32 for the place in it, so
the realised law is *exactly* p_i = P_i / (M 2³²), and it is these p_i that the importance weights use: no row with P_i ≥ 1 is
unreachable and nothing is biased by rounding. A row of probability zero has P_i = 0 and is never drawn.

The table is filled by one sweep in which the current heavy row (P ≥ 2³²) fills the light ones and, once it is light itself, is
filled by the next heavy row. With D the running sum of deficits and E that of excesses, light row j + 1 is filled by the first
heavy row m with E_m ≥ D_j; so the sweep is two sorted look-ups and no loop.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CELL = 2**32


class AliasTable(NamedTuple):
    threshold: np.ndarray  # (M,) uint32
    alias: np.ndarray  # (M,) int32
    probability: np.ndarray  # (N,) float64, the realised law


def alias_table(probability: np.ndarray) -> AliasTable:
    """The table of a probability vector."""
    units = _integer_probabilities(probability)
    n_cells = len(units)
    threshold = np.full(n_cells, CELL - 1, np.uint32)
    alias = np.arange(n_cells, dtype=np.int32)

    light, heavy = np.flatnonzero(units < CELL), np.flatnonzero(units >= CELL)
    deficit, excess = np.cumsum(CELL - units[light]), np.cumsum(units[heavy] - CELL)
    threshold[light] = units[light]
    before = np.concatenate([[0], deficit[:-1]]) if len(light) else deficit
    alias[light] = heavy[np.searchsorted(excess, before, side="left")]

    # A heavy row that ends with less than a cell is topped up by the next one; the last ends with exactly a cell.
    exhausted_by = np.searchsorted(deficit, excess, side="right")
    topped_up = np.flatnonzero(exhausted_by < len(light))
    threshold[heavy[topped_up]] = CELL + excess[topped_up] - deficit[exhausted_by[topped_up]]
    alias[heavy[topped_up]] = heavy[topped_up + 1]
    n_rows = len(probability)
    return AliasTable(threshold, alias, units[:n_rows] / (n_cells * CELL))


def _integer_probabilities(probability: np.ndarray) -> np.ndarray:
    """P_i ≥ 1 where p_i > 0, else 0, with Σ P_i = M 2³² exactly, padded with empty cells to a power of two."""
    n_rows = len(probability)
    possible = np.flatnonzero(probability > 0)
    n_cells = 1 << (n_rows - 1).bit_length() if n_rows > 1 else 2
    total = n_cells * CELL
    units = np.zeros(n_cells, np.int64)
    units[possible] = np.maximum(probability[possible] / probability.sum() * total, 1)
    missing = total - int(units.sum())
    if missing >= 0:
        each, rest = divmod(missing, len(possible))
        units[possible] += each
        units[possible[:rest]] += 1
    else:
        units[np.argmax(units)] += missing
    return units
