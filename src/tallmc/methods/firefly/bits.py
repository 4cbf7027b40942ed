"""The brightness of the rows, one bit per row, and a lookup of the bright rows by rank.

The only cost that grows with the number of rows is a count over words of 32 rows each.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, UInt32

WORD = 32


class BrightRows(eqx.Module):
    """The bits z with their cumulative counts."""

    words: UInt32[Array, " words"]
    """z, 32 rows per word."""
    upto: Int[Array, " words"]
    """Number of bright rows up to and including each word."""

    @classmethod
    def of(cls, words: UInt32[Array, " words"]) -> BrightRows:
        """Count the bits of these words."""
        return cls(
            words, lax.associative_scan(jnp.add, lax.population_count(words).astype(jnp.int32))
        )

    @property
    def count(self) -> Int[Array, ""]:
        """Number of bright rows."""
        return self.upto[-1]

    def rows(self, ranks: Int[Array, " k"]) -> Int[Array, " k"]:
        """Return the row numbers of the bright rows of these ranks, counted from 0.

        Ranks beyond the last bright row give arbitrary numbers.
        """
        word_number = jnp.minimum(
            jnp.searchsorted(self.upto, ranks, side="right"), len(self.words) - 1
        ).astype(jnp.int32)
        word = self.words[word_number]
        rank_in_word = ranks - (
            self.upto[word_number] - lax.population_count(word).astype(jnp.int32)
        )
        masks = jnp.uint32(2**WORD - 1) >> jnp.arange(WORD - 1, -1, -1, dtype=jnp.uint32)
        counts = lax.population_count(word[:, None] & masks).astype(jnp.int32)
        bit = jnp.sum(counts <= rank_in_word[:, None], axis=1, dtype=jnp.int32)
        return WORD * word_number + bit


def pack(bits: Bool[Array, " n"]) -> UInt32[Array, " words"]:
    """Pack 32 bits per word, the first into the lowest bit."""
    shifts = jnp.arange(WORD, dtype=jnp.uint32)
    return jnp.sum(bits.reshape(-1, WORD).astype(jnp.uint32) << shifts, axis=1, dtype=jnp.uint32)
