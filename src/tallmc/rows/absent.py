"""Rows that a step must not read, because all rows of the step were gathered before it."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import equinox as eqx
import numpy as np

from .base import AbstractRows, RowAccess
from .batch import Batch


class AbsentRows(AbstractRows):
    """Stands for the rows in a step that gets all its rows with its supply.

    It has no arrays, so a compiled step does not depend on the number of rows.

    **Arguments:**

    - `view`: turns what was gathered into rows; None if rows were gathered.
    """

    view: Any = eqx.field(static=True, default=None)
    access = RowAccess.STREAM

    @property
    def n_rows(self) -> int:
        _refuse()

    @property
    def row_shapes(self) -> Any:
        _refuse()

    @property
    def floats_per_row(self) -> int:
        _refuse()

    @property
    def on_host(self) -> bool:
        _refuse()

    def in_memory(self) -> NoReturn:
        _refuse()

    def reduce(self, *args: Any, **options: Any) -> NoReturn:
        _refuse()

    def map(self, *args: Any, **options: Any) -> NoReturn:
        _refuse()

    def first_where(self, *args: Any, **options: Any) -> NoReturn:
        _refuse()

    def mixture(self, values: Any, shares: Any) -> NoReturn:
        _refuse()

    def preferential_stream(self, weights: Any, **options: Any) -> NoReturn:
        _refuse()

    def take(self, indices: Any) -> NoReturn:
        _refuse()

    def stream(self, probability: Any, dtype: Any) -> NoReturn:
        _refuse()

    def gather(self, draws: Any) -> NoReturn:
        _refuse()

    def complete(self, batch: Batch) -> Batch:
        if self.view is None:
            return batch
        return Batch(self.view(batch.rows), batch.weights, batch.indices)

    def subset(self, share: float, width: int) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise AssertionError("this step gets its rows with its supply")


class BlankRows(NamedTuple):
    """Stands for the rows of a row store where their values do not matter, only their shapes."""

    n_columns: int
    dtype: Any

    def batch(self, stream: Any, certain: Any, words: np.ndarray) -> Batch:
        shape = words.shape[:-1]
        lines = np.zeros((*shape, self.n_columns), self.dtype)
        return Batch(lines, np.zeros(shape, stream.dtype), np.zeros(shape, np.int32))

    def lines(self, indices: np.ndarray) -> np.ndarray:
        return np.zeros((*indices.shape, self.n_columns), self.dtype)
