"""Rows beyond memory: shards of a row store, read by threads or by an executor.

Sums are computed shard by shard and added in float64, in the order of the shards. Their bits depend
neither on the number of workers nor on who has read which shard.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._core.arrays import aligned_empty, check_numeric, on_device, to_device
from .._core.errors import InvalidInput, check_number
from .._core.supervision import checkpoint, in_threads, one_per_core
from .access import AbstractRows, RowAccess, RowBlock, RowValues
from .law import AbstractStream, Batch, weights_of_batch
from .passes import (
    Blocks,
    InPieces,
    Subset,
    finished,
    joined,
    piece_rows,
    sum_of_blocks,
    total_of,
    values_by_block,
)
from .probabilities import PreferentialStream, check_drawn, count_certain, most_certain
from .resident import BlankRows, ResidentRows
from .shard_stream import (
    CertainRows,
    LawFiles,
    ShardedStream,
    drawn_from_shard,
    first_never_drawn,
    largest_of_shard,
    no_rows,
    shard_of_draws,
    total_of_shard,
)
from .shards import AbstractShards, NpyShards, View, Viewed
from .values import PartFiles, ShardedValues, ValuesPart, delete_at_exit, sums_of_shard
from .workers import Workers

# Sums over shards, in float64 and in the order of the shards.


def sum_of_shard(common: Any, number: int, blocks: tuple[Blocks, Sequence[int]]) -> tuple[Any, Any]:
    """The sum over some blocks of one shard, in float64, and the kinds of its numbers."""
    shards, block_sum, args = common
    division, numbers = blocks
    if len(numbers) == division.count:
        read = division.reader(shards.array(number))
    else:

        def read(block: int) -> np.ndarray:
            return shards.array(number, division.lines(block))

    return sum_of_blocks(read, division, numbers, block_sum, args)


class DrawnRows(NamedTuple):
    indices: Int[np.ndarray, "*k"]
    inverse: Float[np.ndarray, "*k"]  # 1/p
    place: Int[np.ndarray, "*k"]  # the place of each draw in `lines`
    lines: np.ndarray


class ShardedRows(AbstractRows):
    """The rows of a row store. Make them with `tallmc.rows.open`."""

    shards: AbstractShards = eqx.field(static=True)
    view: View = eqx.field(static=True)
    """Turns lines of a shard into the rows that a model sees."""
    workers: Workers = eqx.field(static=True, default=Workers())
    access = RowAccess.STREAM

    @property
    def n_rows(self) -> int:
        return self.shards.manifest.n_rows

    @property
    def row_shapes(self) -> PyTree[jax.ShapeDtypeStruct]:
        blank = self.blank()
        line = jax.ShapeDtypeStruct((1, blank.n_columns), blank.dtype)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype),
            jax.eval_shape(self.view, line),
        )

    @property
    def floats_per_row(self) -> int:
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.row_shapes))

    @property
    def identity(self) -> str:
        """Identifies the rows and the view, not where they are stored or who reads them."""
        return f"{self.shards.manifest.digest} {self.view!r}"

    def blank(self) -> BlankRows:
        """A stand-in for these rows where only their shapes matter."""
        manifest = self.shards.manifest
        return BlankRows(len(manifest.columns), jax.dtypes.canonicalize_dtype(manifest.dtype))

    def viewed(self, view: View) -> ShardedRows:
        return ShardedRows(self.shards, view, self.workers)

    def read_by(self, workers: Workers) -> ShardedRows:
        return ShardedRows(self.shards, self.view, workers)

    def of_shards(self, numbers: Iterable[int]) -> ShardedRows:
        """The rows of some of the shards."""
        shards = self.shards
        assert isinstance(shards, NpyShards), "a row store"
        known = shards.numbers or range(self.n_shards)
        some = NpyShards(shards.path, tuple(known[number] for number in numbers))
        return ShardedRows(some, self.view, self.workers)

    def in_memory(self) -> ResidentRows:
        lines = np.concatenate([self.shards.array(number) for number in range(self.n_shards)])
        return ResidentRows(jax.tree.map(lambda leaf: to_device("rows", leaf), self.view(lines)))

    def reduce(
        self,
        block_sum: Callable[..., PyTree[Array]],
        *args: Any,
        width: int,
        beside: PyTree[Array] | None = None,
        finish: Callable[..., Any] | None = None,
        subset: Subset | None = None,
    ) -> Any:
        assert beside is None, "arrays beside the rows are only for rows in memory"
        chosen = self.subset(width) if subset is None else subset
        read = {k: blocks for k, blocks in enumerate(chosen.blocks) if blocks[1]}
        of_lines = InPieces(Viewed(block_sum, self.view), piece_rows(width), sums=True)
        common = (self.shards, of_lines, args)
        total = total_of(self.workers.each(sum_of_shard, common, read))
        return total if finish is None else finished(total, args, finish)

    def map(
        self,
        per_row: Callable[..., Array],
        *args: Any,
        width: int,
        beside: PyTree[Array] | None = None,
    ) -> ShardedValues:
        assert beside is None, "arrays beside the rows are only for rows in memory"
        return self._checked(ValuesPart(per_row, args, width))

    def survey(
        self,
        per_row: Callable[..., PyTree[Array]],
        keep: Callable[[int, Any], Any],
        *args: Any,
        width: int,
        sums: tuple[Callable[..., PyTree[Array]], tuple[Any, ...]] | None = None,
    ) -> Any:
        size = piece_rows(width)
        of_lines = InPieces(Viewed(per_row, self.view), size, sums=False)
        if sums is not None:
            sums = InPieces(Viewed(sums[0], self.view), size, sums=True), sums[1]
        blocks = [of for of, _ in self.subset(width).blocks]
        common = (self.shards, of_lines, keep, args, sums)
        found = self.workers.each(_survey_of_shard, common, dict(enumerate(blocks)))
        if sums is None:
            return [kept for kept, _ in found]
        return [kept for kept, _ in found], total_of([total for _, total in found])

    def by_block(
        self, per_row: Callable[..., Array], *args: Any, width: int, beside: np.ndarray | range
    ) -> Iterator[np.ndarray]:
        """As `ResidentRows.by_block`, shard by shard."""
        for number, first in enumerate(self.starts):
            checkpoint()
            lines = self.shards.array(number)
            some = ResidentRows(self.view(lines.astype(self.blank().dtype, copy=False)))
            of_shard = beside[first : first + len(lines)]
            yield from some.by_block(per_row, *args, width=width, beside=of_shard)

    def read(self, numbers: Int[np.ndarray, " n"]) -> RowBlock:
        lines = self.lines(numbers)
        return self.view(lines.astype(jax.dtypes.canonicalize_dtype(lines.dtype), copy=False))

    def first_where(self, per_row: Callable[..., Array], *args: Any, width: int) -> int | None:
        _, bad = self._summed(ValuesPart(_Minus(per_row), args, width))
        return None if bad is None else bad[0]

    def stream(self, probability: Float[np.ndarray, " N"] | None, dtype: Any) -> AbstractStream:
        if probability is not None:
            options: dict[str, Any] = {"floor": 0.0, "certain_of": None, "dtype": dtype}
            return self.preferential_stream(probability, **options).stream
        counts = tuple(shard.n_rows / self.n_rows for shard in self.shards.manifest.shards)
        return ShardedStream(None, 0.0, self.n_rows, no_rows(), counts, dtype)

    def preferential_stream(
        self, weights: RowValues, *, floor: float, certain_of: int | None, dtype: Any
    ) -> PreferentialStream:
        check_number("floor", floor, 0, 1)
        values = weights if isinstance(weights, ShardedValues) else self._given(weights)
        if not values.parts:
            cure = "Prepare the method anew, without the weights of a stored run."
            raise InvalidInput("weights", "belong to these rows", "none", cure)
        stream = ShardedStream(values, floor, self.n_rows, no_rows(), (), dtype)
        numbers = dict.fromkeys(range(self.n_shards))
        if floor == 0:
            for row in self.workers.each(first_never_drawn, self._law(stream), numbers):
                check_drawn(row)
        totals = self.workers.each(total_of_shard, self._law(stream), numbers)
        certain = np.zeros(0, np.int64)
        if certain_of is not None and (most := min(most_certain(certain_of), self.n_rows - 1)):
            largest = self.workers.each(
                largest_of_shard, self._law(stream), dict.fromkeys(numbers, most)
            )
            rows, q = (np.concatenate(parts) for parts in zip(*largest, strict=True))
            order = np.lexsort((rows, -q))[:most]
            count = count_certain(q[order], math.fsum(totals), certain_of)
            certain = np.sort(rows[order[:count]])
            stream = dataclasses.replace(stream, excluded=jnp.asarray(certain, jnp.int32))
            changed = dict.fromkeys(np.unique(self._shard_of(certain)).tolist())
            new = self.workers.each(total_of_shard, self._law(stream), changed)
            for number, total in zip(changed, new, strict=True):
                totals[number] = total
        return PreferentialStream(dataclasses.replace(stream, totals=tuple(totals)), certain)

    @property
    def on_host(self) -> bool:
        return True

    def batch(self, stream: ShardedStream, certain: CertainRows, words: np.ndarray) -> Batch:
        """As in `AbstractStream`, of lines of the shards, which `complete` turns into rows."""
        n_certain, shape = len(certain.indices), words.shape[:-1]
        indices, inverse, place, lines = self.drawn(stream, words[..., n_certain:, :])
        rows = aligned_empty((*shape, lines.shape[1]), lines.dtype)
        rows[..., :n_certain, :] = certain.lines
        numbers = np.empty(shape, np.int32)
        numbers[..., :n_certain], numbers[..., n_certain:] = certain.indices, indices
        if n_certain:
            rows[..., n_certain:, :] = take_lines(lines, place)
        else:
            take_lines(lines, place, out=rows)
        return Batch(rows, weights_of_batch(inverse, n_certain), numbers)

    def drawn(self, stream: ShardedStream, words: np.ndarray) -> DrawnRows:
        """Draws with random words of shape (..., 2)."""
        shape = words.shape[:-1]
        shard, below = shard_of_draws(words.reshape(-1, 2), stream.totals)
        places = _places(shard)
        wanted = {k: below[at] for k, at in places.items()}
        found = self.workers.each(drawn_from_shard, self._law(stream), wanted)
        indices, place = np.empty(len(shard), np.int64), np.empty(len(shard), np.intp)
        inverse, whole, first = np.empty(len(shard), stream.dtype), math.fsum(stream.totals), 0
        for (number, at), drawn in zip(places.items(), found, strict=True):
            at = at[drawn.order]
            indices[at] = drawn.lines + self.starts[number]
            inverse[at] = whole / drawn.q
            place[at] = np.arange(first, first + len(at))
            first += len(at)
        lines = np.concatenate([drawn.rows for drawn in found])
        lines = lines.astype(jax.dtypes.canonicalize_dtype(lines.dtype), copy=False)
        return DrawnRows(
            indices.reshape(shape), inverse.reshape(shape), place.reshape(shape), lines
        )

    def lines(self, indices: np.ndarray) -> np.ndarray:
        """Lines of the shards by row number, in an array of shape (len(indices), columns)."""
        places = _places(self._shard_of(indices))
        wanted = {k: np.sort(indices[at] - self.starts[k]) for k, at in places.items()}
        found = self.workers.each(_lines_of_shard, self.shards, wanted)
        lines = self.blank().lines(indices)
        for at, some in zip(places.values(), found, strict=True):
            lines[at[np.argsort(indices[at])]] = some
        return lines

    def complete(self, batch: Batch) -> Batch:
        return Batch(self.view(batch.rows), batch.weights, batch.indices)

    def subset(self, width: int, count: int | None = None) -> Subset:
        sizes = [shard.n_rows for shard in self.shards.manifest.shards]
        blocks = [Blocks.of_shard(size, max(sizes), width) for size in sizes]
        before = itertools.accumulate((of.count for of in blocks), initial=0)
        left = [None if count is None else max(count - n, 0) for n in before]
        numbers = [tuple(range(of.count))[:n] for of, n in zip(blocks, left[:-1], strict=True)]
        return Subset(tuple(zip(blocks, numbers, strict=True)))

    @property
    def n_shards(self) -> int:
        return len(self.shards.manifest.shards)

    @property
    def starts(self) -> Int[np.ndarray, " shards"]:
        """The number of the first row of each shard."""
        return np.array(self.shards.manifest.starts)

    def _checked(self, part: ValuesPart) -> ShardedValues:
        """Compute one value per row, none of them negative or infinite."""
        summed, bad = self._summed(part)
        if bad is not None:
            row, value = bad
            rule = "be finite and not negative"
            raise InvalidInput("preferential weights", rule, f"{value:g} in row {row}")
        return ShardedValues((summed,))

    def _summed(self, part: ValuesPart) -> tuple[ValuesPart, tuple[int, float] | None]:
        """The part with its sums, and the first row with a negative or infinite value."""
        files = PartFiles.named(self.shards, self.view, part)
        delete_at_exit(files.folder)
        found = self.workers.each(sums_of_shard, files, dict.fromkeys(range(self.n_shards)))
        totals = tuple(total for total, _, _ in found)
        bad = [
            (int(first) + line, value)
            for first, (_, line, value) in zip(self.starts, found, strict=True)
            if line is not None
        ]
        return dataclasses.replace(files.part, totals=totals), bad[0] if bad else None

    def _given(self, weights: Any) -> ShardedValues:
        """Weights of the user, as values of this row store."""
        given = np.asarray(check_numeric("preferential weights", weights))
        if given.shape != (self.n_rows,):
            rule = f"be a vector, one number per row ({self.n_rows})"
            raise InvalidInput("preferential weights", rule, f"shape {given.shape}")
        return self._checked(ValuesPart(None, (), 1, given=on_device(given, float)))

    def _law(self, stream: ShardedStream) -> LawFiles:
        excluded = np.asarray(stream.excluded, np.int64)
        values, floor = stream.values, stream.floor
        return LawFiles(self.shards, self.view, values, floor, stream.n_rows, excluded, self.starts)

    def _shard_of(self, indices: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.starts, indices, side="right") - 1


def _survey_of_shard(common: Any, number: int, blocks: Blocks) -> tuple[Any, Any]:
    shards, per_row, keep, args, sums = common
    read = blocks.reader(shards.array(number))
    values = joined(list(values_by_block(read, blocks, per_row, args)))
    kept = keep(shards.manifest.starts[number], values)
    if sums is None:
        return kept, None
    return kept, sum_of_blocks(read, blocks, range(blocks.count), *sums)  # from the page cache


def _places(shard: np.ndarray) -> dict[int, np.ndarray]:
    counts = np.bincount(shard)
    # Sixteen bits are sorted by radix.
    order = np.argsort(shard.astype(np.uint16 if len(counts) <= 2**16 else int), kind="stable")
    places = np.split(order, np.cumsum(counts)[:-1])
    return {number: at for number, at in enumerate(places) if len(at)}


def _lines_of_shard(shards: AbstractShards, number: int, lines: np.ndarray) -> np.ndarray:
    return shards.lines(number, lines)


def take_lines(lines: np.ndarray, place: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """`lines[place]`, by several threads."""
    if out is None:
        out = np.empty((*place.shape, lines.shape[1]), lines.dtype)
    flat, places = out.reshape(-1, lines.shape[1]), place.ravel()

    def take(part: slice) -> None:
        np.take(lines, places[part], axis=0, out=flat[part], mode="clip")

    in_threads(take, one_per_core(len(places)))
    return out


@dataclasses.dataclass(frozen=True)
class _Minus:
    """Minus one where a function of rows is true: `sums_of_shard` finds the first such row."""

    function: Callable[..., Array]

    def __call__(self, block: RowBlock, *args: Any) -> Float[Array, " n"]:
        return -self.function(block, *args).astype(jnp.float32)
