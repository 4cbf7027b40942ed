"""Simulate a logistic regression, in memory or into a row store."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..core.threads import core_count, in_threads
from ..ingestion.errors import INTERCEPT
from ..ingestion.progress import shown
from ..rows.manifest import Column
from ..rows.writer import RowStoreWriter

RESPONSE = "y"
_ROWS_PER_PIECE = 2**17


class Simulation(NamedTuple):
    """An intercept and standard normal covariates.

    The coefficients are small enough that both responses are common.
    """

    n_rows: int
    n_columns: int
    seed: int

    @property
    def truth(self) -> pd.Series:
        """The true coefficients by name."""
        names = [INTERCEPT, *(f"x{j}" for j in range(1, self.n_columns))]
        rng = np.random.default_rng(self.seed)
        scale = 1.5 / np.sqrt(self.n_columns)
        return pd.Series(rng.normal(0.0, scale, self.n_columns), index=names)

    @property
    def n_bytes(self) -> int:
        """Bytes that the rows take."""
        return 4 * self.n_rows * (self.n_columns + 1)

    def in_memory(self) -> tuple[np.ndarray, np.ndarray]:
        """The design matrix and the responses."""
        rng = np.random.default_rng(self.seed)
        coefficients = self.truth.to_numpy(np.float32)
        rng.normal(size=self.n_columns)  # the numbers of the coefficients
        x = rng.standard_normal((self.n_rows, self.n_columns), dtype=np.float32)
        x[:, 0] = 1.0
        return x, _responses(rng, x, coefficients)

    def into_row_store(self, folder: Path) -> None:
        """Write the rows into a new row store, or go on with an unfinished one."""
        names = self.truth.index
        columns = [Column(name, name, standardised=name != INTERCEPT) for name in names]
        response = Column(RESPONSE, RESPONSE, mean=0.5, sd=0.5, low=0.0, high=1.0, whole=True)
        source = {"simulation": list(self)}
        with RowStoreWriter(folder, [*columns, response], "float32", RESPONSE, source) as writer:
            pieces = self._pieces(writer.n_rows)
            for piece in shown(pieces, "simulating", writer.n_rows, self.n_rows, None):
                writer.append(piece.rows)
            writer.finish()

    def _pieces(self, done: int) -> Iterator[_Piece]:
        """All rows but the first `done`, a piece per core at a time."""
        count, at_once = -(-self.n_rows // _ROWS_PER_PIECE), core_count()
        for number in range(done // _ROWS_PER_PIECE, count, at_once):
            some = range(number, min(number + at_once, count))
            for k, rows in zip(some, in_threads(self._piece, some), strict=True):
                yield _Piece(rows[max(0, done - k * _ROWS_PER_PIECE) :])

    def _piece(self, number: int) -> np.ndarray:
        """Some rows, with random numbers of their own."""
        rng = np.random.default_rng([self.seed, number])
        count = min(_ROWS_PER_PIECE, self.n_rows - number * _ROWS_PER_PIECE)
        lines = np.empty((count, self.n_columns + 1), np.float32)
        x = rng.standard_normal((count, self.n_columns), dtype=np.float32)
        x[:, 0] = 1.0
        lines[:, :-1], lines[:, -1] = x, _responses(rng, x, _coefficients(self))
        return lines


class _Piece(NamedTuple):
    rows: np.ndarray

    @property
    def n_rows(self) -> int:
        return len(self.rows)


@functools.lru_cache(maxsize=1)
def _coefficients(simulation: Simulation) -> np.ndarray:
    return simulation.truth.to_numpy(np.float32)


def _responses(rng: np.random.Generator, x: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    odds = np.exp(x @ coefficients)
    return rng.random(len(x), dtype=np.float32) < odds / (1 + odds)
