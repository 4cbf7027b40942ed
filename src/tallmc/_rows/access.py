"""Rows: what every kind of them offers, whether they are in memory or in a row store."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .law import AbstractStream, Batch, RowDraws
from .passes import Subset
from .probabilities import PreferentialStream

PerRow: TypeAlias = Float[Array, "n ..."]
"""One number per row of a block, or one per row and position."""
RowBlock: TypeAlias = PyTree[Array]
"""Some rows: the user's pytree, in which each array has a leading axis for the rows."""
RowValues: TypeAlias = Any
"""One value per row: an array, or `ShardedValues` that are kept beside the rows."""


class RowAccess(enum.IntEnum):
    """How a method reads rows while its chains run. Each level includes the previous one."""

    STREAM = 1
    """Draws from probabilities fixed before the step; passes over all rows between steps."""
    TAKE = 2
    """Rows by number, or all rows, inside a step. The rows must be in memory."""


class AbstractRows(eqx.Module):
    """The rows of a data set, wherever they are stored."""

    access: ClassVar[RowAccess]
    """The highest access that these rows support."""

    @property
    @abc.abstractmethod
    def n_rows(self) -> int:
        """N, the number of rows."""

    @property
    @abc.abstractmethod
    def row_shapes(self) -> PyTree[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the arrays of one row."""

    @property
    @abc.abstractmethod
    def floats_per_row(self) -> int:
        """How many numbers one row has."""

    @abc.abstractmethod
    def in_memory(self) -> AbstractRows:
        """The same rows as arrays in memory."""

    @abc.abstractmethod
    def reduce(
        self,
        block_sum: Callable[..., PyTree[Array]],
        *args: Any,
        width: int,
        beside: PyTree[Array] | None = None,
        finish: Callable[..., Any] | None = None,
        subset: Subset | None = None,
    ) -> Any:
        """Σ over all rows, or the blocks of `subset`, block by block, in double precision.

        `block_sum(rows, counted, *args)` is the sum over those rows of a block for which `counted`
        is true; with arrays `beside` the rows, `block_sum(rows, beside, counted, *args)`. Define it
        at module level, so that a second call reuses the compiled program. Arrays in `args` are
        traced. `width` is how many floats the computation needs per row; it sets the block size.

        **Returns:** a `Sum`, or `finish(sum, *args)`.
        """

    @abc.abstractmethod
    def map(
        self,
        per_row: Callable[..., Array],
        *args: Any,
        width: int,
        beside: PyTree[Array] | None = None,
    ) -> RowValues:
        """One value per row: an array, or `ShardedValues` that are kept beside the rows.

        `per_row(rows, *args)`, or `per_row(rows, beside, *args)`, computes one block.
        """

    @abc.abstractmethod
    def survey(
        self,
        per_row: Callable[..., PyTree[Array]],
        keep: Callable[[int, Any], Any],
        *args: Any,
        width: int,
        sums: tuple[Callable[..., PyTree[Array]], tuple[Any, ...]] | None = None,
    ) -> Any:
        """What `keep` makes of values per row, which are never together in memory beyond it.

        `keep(first, values)` gets the values `per_row(rows, *args)` of consecutive rows, the first
        of them with the number `first`. Several values per row are a tuple of arrays. The results
        come in the order of the rows. With `sums`, a function of blocks and its arguments, the
        same pass returns them and the `Sum` that `reduce` would return.
        """

    @abc.abstractmethod
    def read(self, numbers: Int[np.ndarray, " n"]) -> RowBlock:
        """Rows by number, between steps. Every number must be in range."""

    def batch_of(self, numbers: Int[np.ndarray, " n"], weights: np.ndarray, dtype: Any) -> Batch:
        """These rows, and copies of the first of weight zero: as many as the next power of two.

        Programs for such a batch hardly depend on the number of rows.
        """
        missing = (1 << max(len(numbers) - 1, 255).bit_length()) - len(numbers)
        every = np.append(numbers, np.repeat(numbers[:1], missing))
        padded = np.append(weights, np.zeros(missing)).astype(dtype)
        return Batch(*jax.device_put((self.read(every), padded)))

    @abc.abstractmethod
    def first_where(self, per_row: Callable[..., Array], *args: Any, width: int) -> int | None:
        """The number of the first row for which `per_row(rows, *args)` is true."""

    @abc.abstractmethod
    def stream(self, probability: Float[np.ndarray, " N"] | None, dtype: Any) -> AbstractStream:
        """Independent draws with replacement from `probability`; uniform if None."""

    @abc.abstractmethod
    def preferential_stream(
        self, weights: RowValues, *, floor: float, certain_of: int | None, dtype: Any
    ) -> PreferentialStream:
        """Draws in proportion to weights, with a share `floor` of uniform weights.

        With `certain_of`, the rows that are expected at least once in so many draws are certain.
        """

    @property
    @abc.abstractmethod
    def on_host(self) -> bool:
        """Whether NumPy can gather rows: whether `batches_on_host` of a stream works."""

    @abc.abstractmethod
    def complete(self, batch: Batch) -> Batch:
        """`batch` as an estimator sees it inside a step, with the packed copy of all rows."""

    @abc.abstractmethod
    def subset(self, width: int, count: int | None = None) -> Subset:
        """The blocks of a pass with this `width`, or the first `count` of them."""

    # Access `TAKE`. Methods that need it are refused before they run on other rows.

    def take(self, indices: Int[Array, "*k"]) -> RowBlock:
        """Rows by number. Every number must be in range."""
        raise AssertionError("rows of a row store are not read by number inside a step")

    def gather(self, draws: RowDraws) -> Batch:
        """The rows of these draws."""
        raise AssertionError("rows of a row store are not read by number inside a step")
