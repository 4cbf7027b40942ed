"""Rows in memory: arrays on the device.

A pass is driven by the host (`passes.py`). Only a pass inside a compiled program, such as a step
that uses all rows, is a compiled loop over the blocks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from .._core.arrays import aligned_empty, on_device, to_device
from .._core.errors import InvalidInput
from .._core.supervision import in_threads, one_per_core
from .access import AbstractRows, RowAccess, RowBlock, RowValues
from .law import AliasLaw, Batch, ResidentStream, RowDraws, UniformLaw, materialised, take_rows
from .passes import (
    Blocks,
    Subset,
    Sum,
    block_rows,
    finished,
    map_blocks,
    sum_of_blocks,
    total_of,
    values_by_block,
)
from .probabilities import PreferentialStream, certain_rows, probabilities


class ResidentRows(AbstractRows):
    """Rows as arrays with one common leading axis."""

    columns: PyTree[Array]
    packed: Float[Array, "N c"] | None = None
    """A second copy of the rows, in the layout of the fused GPU kernel."""
    access = RowAccess.TAKE

    @property
    def n_rows(self) -> int:
        return jax.tree.leaves(self.columns)[0].shape[0]

    @property
    def row_shapes(self) -> PyTree[jax.ShapeDtypeStruct]:
        return jax.tree.map(
            lambda column: jax.ShapeDtypeStruct(column.shape[1:], column.dtype), self.columns
        )

    @property
    def floats_per_row(self) -> int:
        return sum(math.prod(column.shape[1:]) for column in jax.tree.leaves(self.columns))

    def in_memory(self) -> ResidentRows:
        return self

    def reduce(
        self,
        block_sum: Callable[..., PyTree[Array]],
        *args: Any,
        width: int,
        beside: PyTree[Array] | None = None,
        finish: Callable[..., Any] | None = None,
        subset: Subset | None = None,
    ) -> Any:
        columns, blocks = self._columns_with(beside), Blocks.of(self.n_rows, width)
        term = _BesideRows(block_sum) if beside is not None else block_sum
        if _is_traced((columns, args)):
            assert subset is None, "a pass inside a compiled program reads all rows"
            return _traced_reduce(columns, self.n_rows, block_rows(width), term, args, finish)
        numbers: Sequence[int] = range(blocks.count) if subset is None else subset.blocks[0][1]
        total = total_of([sum_of_blocks(_reader(columns, blocks), blocks, numbers, term, args)])
        return total if finish is None else finished(total, args, finish)

    def map(
        self,
        per_row: Callable[..., Array],
        *args: Any,
        width: int,
        beside: PyTree[Array] | None = None,
    ) -> Array:
        columns, blocks = self._columns_with(beside), Blocks.of(self.n_rows, width)
        value = _BesideRows(per_row) if beside is not None else per_row
        if _is_traced((columns, args)):
            return _traced_map(columns, self.n_rows, block_rows(width), value, args)
        return map_blocks(_reader(columns, blocks), blocks, value, args)

    def survey(
        self,
        per_row: Callable[..., PyTree[Array]],
        keep: Callable[[int, Any], Any],
        *args: Any,
        width: int,
        sums: tuple[Callable[..., PyTree[Array]], tuple[Any, ...]] | None = None,
    ) -> Any:
        found = [keep(0, jax.tree.map(np.asarray, self.map(per_row, *args, width=width)))]
        return found if sums is None else (found, self.reduce(sums[0], *sums[1], width=width))

    def read(self, numbers: Int[np.ndarray, " n"]) -> RowBlock:
        if not self.on_host:
            return self.take(on_device(numbers, np.int32))
        # Taken by NumPy, the rows need no program.
        return _taken_on_host(jax.tree.map(np.asarray, self.columns), numbers)

    def by_block(
        self, per_row: Callable[..., Array], *args: Any, width: int, beside: PyTree[Array] | range
    ) -> Iterator[np.ndarray]:
        """`per_row(rows, beside, *args)` on the host by block, for values too many to keep.

        A range stands for the numbers of the rows.
        """
        blocks = Blocks.of(self.n_rows, width)
        if isinstance(beside, range):
            beside = np.arange(beside.start, beside.stop, dtype=np.uint32)
        read = _reader(self._columns_with(beside), blocks)
        return values_by_block(read, blocks, _BesideRows(per_row), args)

    def first_where(self, per_row: Callable[..., Array], *args: Any, width: int) -> int | None:
        found = np.asarray(self.map(per_row, *args, width=width))
        return int(np.argmax(found)) if found.any() else None

    def take(self, indices: Int[Array, "*k"]) -> RowBlock:
        return take_rows(self.columns, indices)

    def neighbours(self, start: Any, count: int) -> RowBlock:
        """`count` consecutive rows, from number `start` on."""
        return _slice(self.columns, start, count)

    def stream(self, probability: Float[np.ndarray, " N"] | None, dtype: Any) -> ResidentStream:
        if probability is None:
            return ResidentStream(UniformLaw(self.n_rows, dtype))
        return ResidentStream(AliasLaw.of(probability, dtype))

    def preferential_stream(
        self, weights: RowValues, *, floor: float, certain_of: int | None, dtype: Any
    ) -> PreferentialStream:
        p, certain = probabilities(weights, floor), np.zeros(0, int)
        if certain_of is not None:
            certain, p = certain_rows(p, certain_of)
        return PreferentialStream(self.stream(p, dtype), certain)

    def gather(self, draws: RowDraws) -> Batch:
        indices = materialised(draws.indices) if draws.indices.ndim > 1 else draws.indices
        return Batch(take_rows(self.columns, indices), draws.weights, indices)

    @property
    def on_host(self) -> bool:
        return jax.default_backend() == "cpu"

    def gather_on_host(self) -> Callable[[np.ndarray, np.ndarray], Batch]:
        """A function of row numbers and weights that returns the batch, read by NumPy."""
        views = jax.tree.map(np.asarray, self.columns)
        return lambda indices, weights: Batch(_taken_on_host(views, indices), weights, indices)

    def complete(self, batch: Batch) -> Batch:
        return Batch(batch.rows, batch.weights, batch.indices, self.packed)

    def subset(self, width: int, count: int | None = None) -> Subset:
        blocks = Blocks.of(self.n_rows, width)
        return Subset(((blocks, tuple(range(blocks.count))[:count]),))

    def _columns_with(self, beside: PyTree[Array] | None) -> PyTree[Array]:
        return self.columns if beside is None else (self.columns, beside)


def resident(data: PyTree[ArrayLike]) -> ResidentRows:
    """Check the user's arrays and copy them to the device.

    **Arguments:**

    - `data`: a pytree of arrays with one common, non-empty leading axis, or a data frame, which
      becomes a dict of its columns.
    """
    columns = jax.tree.map(lambda column: to_device("data", column), _by_column(data))
    leaves = jax.tree.leaves(columns)
    if not leaves:
        raise InvalidInput("data", "hold at least one array", data)
    lengths = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
    if len(lengths) != 1 or None in lengths or 0 in lengths:
        shapes = [leaf.shape for leaf in leaves]
        is_list = isinstance(data, (list, tuple))
        cure = "Pass arrays: a list is a pytree of its entries." if is_list else ""
        rule = "be arrays with one common, non-empty leading axis"
        raise InvalidInput("data", rule, f"shapes {shapes}", cure)
    return ResidentRows(columns)


def _by_column(data: PyTree) -> PyTree:
    """The columns of a data frame by name; anything else as it is."""
    names = getattr(data, "columns", None)
    if names is None or not hasattr(data, "to_numpy"):
        return data
    columns = {str(name): data[name].to_numpy() for name in names}
    text = [name for name, values in columns.items() if values.dtype.kind in "OUSMmT"]
    for name in text:
        try:
            columns[name] = columns[name].astype(float)
        except (TypeError, ValueError):
            cure = "Leave it out, or turn it into numbers first."
            found = f"column {name!r} of dtype {data[name].dtype}"
            raise InvalidInput("data", "be columns of numbers", found, cure) from None
    return columns


@dataclasses.dataclass(frozen=True)
class _BesideRows:
    """A function of rows and of the arrays beside them, as a function of both together."""

    function: Callable[..., Any]

    def __call__(self, both: tuple[RowBlock, PyTree[Array]], *args: Any) -> Any:
        return self.function(*both, *args)


def _is_traced(values: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def _taken_on_host(views: PyTree[np.ndarray], indices: np.ndarray) -> PyTree[np.ndarray]:
    rows = jax.tree.map(
        lambda column: aligned_empty((*indices.shape, *column.shape[1:]), column.dtype), views
    )

    def take(part: slice) -> None:
        # With mode="raise", the default, NumPy would use a buffer.
        jax.tree.map(
            lambda column, out: np.take(column, indices[part], axis=0, out=out[part], mode="clip"),
            views,
            rows,
        )

    in_threads(take, one_per_core(len(indices)))
    return rows


def _reader(columns: PyTree[Array], blocks: Blocks) -> Callable[[int], PyTree]:
    """Reads blocks of these columns: views of the memory on a CPU, copies on other devices."""
    if jax.default_backend() != "cpu":
        return lambda number: _sliced(columns, np.int32(blocks.start(number)), blocks.size)
    readers = jax.tree.map(lambda column: blocks.reader(np.asarray(column)), columns)
    return lambda number: jax.tree.map(lambda read: read(number), readers)


@functools.partial(jax.jit, static_argnames="size")
def _sliced(columns: PyTree[Array], start: Any, size: int) -> PyTree[Array]:
    return _slice(columns, start, size)


def _traced_reduce(
    columns: PyTree[Array],
    n_rows: int,
    size: int,
    block_sum: Callable[..., PyTree[Array]],
    args: tuple[Any, ...],
    finish: Callable[..., Any] | None,
) -> Any:
    """A pass as a loop inside a compiled program."""
    n_whole = n_rows // size
    rest = n_rows - n_whole * size

    def term(rows: PyTree[Array]) -> PyTree[Array]:
        return block_sum(rows, jnp.ones(jax.tree.leaves(rows)[0].shape[0], bool), *args)

    def whole(number: Any) -> PyTree[Array]:
        return _slice(columns, number * size, size)

    def tail() -> PyTree[Array]:
        return _slice(columns, n_whole * size, rest)

    total = Sum.zero(jax.eval_shape(lambda: term(whole(0) if n_whole else tail())))
    if n_whole:
        total = lax.fori_loop(
            0, n_whole, lambda number, total: total.plus(term(whole(number))), total
        )
    if rest:
        total = total.plus(term(tail()))
    return total if finish is None else finish(total, *args)


def _traced_map(
    columns: PyTree[Array],
    n_rows: int,
    size: int,
    per_row: Callable[..., Array],
    args: tuple[Any, ...],
) -> Array:
    """Values of all rows as a loop inside a compiled program."""
    n_whole = n_rows // size
    rest = n_rows - n_whole * size
    parts = []
    if n_whole:
        starts = jnp.arange(n_whole) * size
        mapped = lax.map(lambda start: per_row(_slice(columns, start, size), *args), starts)
        parts.append(mapped.reshape(n_whole * size, *mapped.shape[2:]))
    if rest:
        parts.append(per_row(_slice(columns, n_whole * size, rest), *args))
    return jnp.concatenate(parts)


def _slice(columns: PyTree[Array], start: Any, size: int) -> PyTree[Array]:
    return jax.tree.map(lambda column: lax.dynamic_slice_in_dim(column, start, size), columns)


class AbsentRows(eqx.Module):
    """Stands for the rows in a step that gets all its rows with its supply.

    It is not an `AbstractRows`: such a step reads no rows. It has no arrays either, so a compiled
    step does not depend on the number of rows.
    """

    view: Any = eqx.field(static=True, default=None)
    """Turns what was gathered into rows; None if rows were gathered."""
    access = RowAccess.STREAM

    def complete(self, batch: Batch) -> Batch:
        if self.view is None:
            return batch
        return Batch(self.view(batch.rows), batch.weights, batch.indices)


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
