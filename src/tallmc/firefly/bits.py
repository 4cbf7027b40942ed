"""Which rows are bright, a bit a row, and the numbers of those that are, found by rank.

A count over the words, 32 rows each, is all that grows with the number of rows.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, UInt32

WORD = 32


class Bright(eqx.Module):
    """The bits z, and how many are set up to and in each word."""

    words: UInt32[Array, " words"]
    upto: Int[Array, " words"]

    @classmethod
    def of(cls, words: UInt32[Array, " words"]) -> Bright:
        return cls(words, lax.associative_scan(jnp.add, lax.population_count(words).astype(jnp.int32)))

    @property
    def count(self) -> Int[Array, ""]:
        return self.upto[-1]

    def rows(self, ranks: Int[Array, " k"]) -> Int[Array, " k"]:
        """The row numbers of the first, second, … bright row (from rank 0); beyond the last of them, anything."""
        number = jnp.minimum(jnp.searchsorted(self.upto, ranks, side="right"), len(self.words) - 1).astype(jnp.int32)
        word = self.words[number]
        within = ranks - (self.upto[number] - lax.population_count(word).astype(jnp.int32))
        masks = jnp.uint32(2**WORD - 1) >> jnp.arange(WORD - 1, -1, -1, dtype=jnp.uint32)
        counts = lax.population_count(word[:, None] & masks).astype(jnp.int32)
        return WORD * number + jnp.sum(counts <= within[:, None], axis=1, dtype=jnp.int32)


def pack(bits: Bool[Array, " n"]) -> UInt32[Array, " words"]:
    """32 bits a word, the first the lowest."""
    places = jnp.arange(WORD, dtype=jnp.uint32)
    return jnp.sum(bits.reshape(-1, WORD).astype(jnp.uint32) << places, axis=1, dtype=jnp.uint32)
