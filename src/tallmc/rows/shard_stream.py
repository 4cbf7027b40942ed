"""Draws from the rows of a row store, by inversion of their distribution function.

    q_i = (1 − δ) w_i/Σw + δ/N, but 0 for excluded rows;   p_i = q_i/Σq

A uniform number u of a draw chooses the row i with Σ_{j<i} q_j ≤ u Σq < Σ_{j≤i} q_j: first the
shard, by the sums of the shards, then the row, by the cumulative sum within the shard. Draws are
therefore independent, whatever the order of the rows, and a draw depends on its random words alone:
not on how many are made at a time, by whom, or from how many shards. Nothing of size N is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .batch import RowDraws
from .shards import AbstractShards
from .stream import AbstractStream
from .values import PartFiles, ShardedValues
from .view import View


class ShardedStream(AbstractStream):
    """Draws from a row store."""

    values: ShardedValues | None
    """w; None if all are equal."""
    floor: float = eqx.field(static=True)
    """δ."""
    n_rows: int = eqx.field(static=True)
    excluded: Int[Array, " a"]
    """Rows that are not drawn, in increasing order."""
    totals: tuple[float, ...] = eqx.field(static=True)
    """Σ q_i of each shard."""
    dtype: Any = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, shape: tuple[int, ...], first: Any = 0) -> RowDraws:
        raise AssertionError("rows of a row store are drawn by the host")

    def draw_on_host(self, source: Any) -> Any:
        return lambda words: source.drawn(self, words)

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
    starts: np.ndarray
    """The number of the first row of each shard."""

    def of_shard(self, number: int) -> Float[np.ndarray, " n"]:
        """q of the rows of one shard."""
        length = self.shards.manifest.shards[number].n_rows
        q = np.full(length, self.floor / self.n_rows)
        if self.values is None:
            q[:] = 1 / self.n_rows
        else:
            total = self.values.total
            for part in self.values.parts:
                # Weights that are all zero say nothing: the law is then uniform.
                scale = (1 - self.floor) * part.factor / total if total > 0 else 0.0
                q += scale * PartFiles(self.shards, self.view, part).of_shard(number)
            if total == 0:
                q += (1 - self.floor) / self.n_rows
        first = self.starts[number]
        here = self.excluded[(self.excluded >= first) & (self.excluded < first + length)]
        q[here - first] = 0
        return q


def total_of_shard(law: LawFiles, number: int, _: Any) -> float:
    """Σ q_i of one shard, as the last of its cumulative sums."""
    return float(np.cumsum(law.of_shard(number))[-1])


def largest_of_shard(law: LawFiles, number: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` rows of one shard with the largest q, by number, and their q."""
    q = law.of_shard(number)
    kept = np.argpartition(-q, count)[:count] if count < len(q) else np.arange(len(q))
    kept = np.sort(kept)
    return kept + law.starts[number], q[kept]


def drawn_from_shard(
    law: LawFiles, number: int, below: Float[np.ndarray, " k"]
) -> tuple[np.ndarray, np.ndarray]:
    """The lines at which the cumulative sum of q exceeds each of `below`, and their q."""
    q = law.of_shard(number)
    cumulative = np.cumsum(q)
    order = np.argsort(below)
    last = np.nextafter(cumulative[-1], 0)
    lines = np.empty(len(below), np.int64)
    lines[order] = np.searchsorted(cumulative, np.minimum(below[order], last), side="right")
    return lines, q[lines]


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
    """No excluded rows."""
    return jnp.zeros(0, jnp.int32)
