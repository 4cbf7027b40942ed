"""Draws from the rows of a row store, by inversion of their distribution function.

    q_i = (1 − δ) w_i/Σw + δ/N, but 0 for excluded rows;   p_i = q_i/Σq

A uniform number u of a draw chooses the row i with Σ_{j<i} q_j ≤ u Σq < Σ_{j≤i} q_j: first the
shard, by the sums of the shards, then the row, by the cumulative sum within the shard. Draws are
therefore independent, whatever the order of the rows, and a draw depends on its random words alone:
not on how many are made at a time, by whom, or from how many shards. Nothing of size N is kept.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .law import AbstractStream, HostBatches, RowDraws
from .shards import AbstractShards, View
from .values import PartFiles, ShardedValues

# Arrays that were made recently, up to a number of bytes.


class RecentArrays:
    """Keeps arrays by key, and forgets those that were used least recently. Safe in threads."""

    def __init__(self, most_bytes: int):
        self._most, self._lock = most_bytes, threading.Lock()
        self._arrays: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array of this key, made if it is not there."""
        with self._lock:
            if key in self._arrays:
                self._arrays.move_to_end(key)
                return self._arrays[key]
        made = make()
        with self._lock:
            if key not in self._arrays:
                self._arrays[key] = made
                self._bytes += made.nbytes
            while self._bytes > self._most:
                _, forgotten = self._arrays.popitem(last=False)
                self._bytes -= forgotten.nbytes
        return made


class CertainRows(NamedTuple):
    """The rows that are in every step. They are read once."""

    indices: Int[np.ndarray, " a"]
    lines: np.ndarray


class ShardedStream(AbstractStream):
    values: ShardedValues | None  # w; None if all are equal
    floor: float = eqx.field(static=True)  # δ
    n_rows: int = eqx.field(static=True)
    excluded: Int[Array, " a"]  # rows that are not drawn, in increasing order
    totals: tuple[float, ...] = eqx.field(static=True)  # Σ q_i of each shard
    dtype: Any = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, shape: tuple[int, ...], first: Any = 0) -> RowDraws:
        raise AssertionError("rows of a row store are drawn by the host")

    def batches_on_host(self, rows: Any, certain: Int[np.ndarray, " a"]) -> HostBatches:
        certain_lines = rows.lines(certain)
        return lambda words: rows.batch(self, CertainRows(certain, certain_lines), words)

    def probabilities(self) -> Float[np.ndarray, " N"]:
        raise AssertionError("the probabilities of the rows of a row store are not kept")


@dataclasses.dataclass(frozen=True)
class LawFiles:
    """q of each shard, for the workers that compute with it."""

    shards: AbstractShards
    view: View
    values: ShardedValues | None
    floor: float
    n_rows: int
    excluded: np.ndarray
    starts: np.ndarray  # the number of the first row of each shard

    def weights(self, number: int) -> Float[np.ndarray, " n"]:
        """W of the rows of one shard, in float64."""
        if self.values is None:
            return np.zeros(self.shards.manifest.shards[number].n_rows)
        parts = [
            part.factor * PartFiles(self.shards, self.view, part).of_shard(number).astype(float)
            for part in self.values.parts
        ]
        return parts[0] if len(parts) == 1 else np.sum(parts, axis=0)

    @property
    def scale_and_floor(self) -> tuple[float, float]:
        """A and b of q_i = a w_i + b. Weights that are all zero say nothing."""
        total = 0.0 if self.values is None else self.values.total
        share = 1 - self.floor if total > 0 else 0.0
        return (share / total if total > 0 else 0.0), (1 - share) / self.n_rows

    def cumulative(self, number: int) -> Float[np.ndarray, " n"]:
        names = () if self.values is None else tuple((p.name, p.factor) for p in self.values.parts)
        key = (self.shards.folder, names, self.floor, self.excluded.tobytes(), number)
        return _recent.get(key, lambda: self._summed(number))

    def _summed(self, number: int) -> Float[np.ndarray, " n"]:
        a, b = self.scale_and_floor
        q = self.weights(number)
        q *= a
        q += b
        q[self.excluded_lines(number)] = 0
        return np.cumsum(q, out=q)

    def excluded_lines(self, number: int) -> Int[np.ndarray, " k"]:
        length = self.shards.manifest.shards[number].n_rows
        lines = self.excluded - self.starts[number]
        return lines[(lines >= 0) & (lines < length)]


_recent = RecentArrays(2**27)  # cumulative sums of small row stores: each visit needs them again


def total_of_shard(law: LawFiles, number: int, _: Any) -> float:
    """Σ q_i of one shard, as the last of its cumulative sums."""
    return float(law.cumulative(number)[-1])


def first_never_drawn(law: LawFiles, number: int, _: Any) -> int | None:
    """The first row of one shard with q = 0, by number."""
    a, b = law.scale_and_floor
    never = a * law.weights(number) + b <= 0
    return int(np.argmax(never)) + int(law.starts[number]) if never.any() else None


def largest_of_shard(law: LawFiles, number: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` rows of one shard with the largest q, by number, and their q."""
    a, b = law.scale_and_floor
    q = a * law.weights(number) + b
    kept = np.argpartition(-q, count)[:count] if count < len(q) else np.arange(len(q))
    kept = np.sort(kept)
    return kept + law.starts[number], q[kept]


class DrawnFromShard(NamedTuple):
    """Draws from one shard, in increasing order of their lines."""

    order: Int[np.ndarray, " k"]  # the number of each draw among those that were asked for
    lines: Int[np.ndarray, " k"]
    q: Float[np.ndarray, " k"]
    rows: np.ndarray  # the numbers of each line


def drawn_from_shard(law: LawFiles, number: int, below: Float[np.ndarray, " k"]) -> DrawnFromShard:
    """The lines at which the cumulative sum of q exceeds each of `below`."""
    order = np.argsort(below)
    if law.values is None and not len(law.excluded):
        last_line = law.shards.manifest.shards[number].n_rows - 1
        lines = np.minimum((below[order] * law.n_rows).astype(np.int64), last_line)
        q = np.full(len(lines), 1 / law.n_rows)
        return DrawnFromShard(order, lines, q, law.shards.lines(number, lines))
    cumulative = law.cumulative(number)
    last = np.nextafter(cumulative[-1], 0)
    lines = np.searchsorted(cumulative, np.minimum(below[order], last), side="right")
    before = np.where(lines > 0, cumulative[lines - 1], 0)
    return DrawnFromShard(order, lines, cumulative[lines] - before, law.shards.lines(number, lines))


def shard_of_draws(
    words: np.ndarray, totals: Sequence[float]
) -> tuple[Int[np.ndarray, "*k"], Float[np.ndarray, "*k"]]:
    """The shard that each pair of random words chooses, and its place within the sum of q there."""
    ends = np.cumsum(totals)
    high, low = (words[..., k].astype(np.float64) for k in (0, 1))
    at = (high * 2.0**-32 + np.floor(low / 2**11) * 2.0**-53) * ends[-1]
    shard = np.minimum(np.searchsorted(ends, at, side="right"), len(ends) - 1)
    return shard, at - np.concatenate([[0.0], ends])[shard]


def no_rows() -> Int[Array, " 0"]:
    return jnp.zeros(0, jnp.int32)
