"""Pseudo-random permutations of the row numbers, evaluated where they are needed.

A Feistel network permutes the numbers below a power of four. Numbers that leave the range of the
rows are permuted again until they return, which is a permutation of that range. No array of N
numbers is made.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

from ...core.random import random_words

_ROUNDS = 6


def permuted(key: PRNGKeyArray, numbers: Int[Array, " k"], count: int) -> Int[Array, " k"]:
    """π(number) of the key's permutation π of 0, …, count − 1. All numbers are below `count`."""
    half = max(1, -(-(count - 1).bit_length() // 2))
    keys = random_words(key, (_ROUNDS,))[:, 0]

    def network(values: UInt32[Array, " k"]) -> UInt32[Array, " k"]:
        left, right = values >> half, values & (2**half - 1)
        for number in range(_ROUNDS):
            left, right = right, left ^ (_mixed(right ^ keys[number]) >> (32 - half))
        return left << half | right

    found = lax.while_loop(
        lambda values: jnp.any(values >= count),
        lambda values: jnp.where(values >= count, network(values), values),
        network(numbers.astype(jnp.uint32)),
    )
    return found.astype(jnp.int32)


def _mixed(words: UInt32[Array, " k"]) -> UInt32[Array, " k"]:
    """The finaliser of MurmurHash3."""
    words = (words ^ words >> 16) * jnp.uint32(0x85EBCA6B)
    words = (words ^ words >> 13) * jnp.uint32(0xC2B2AE35)
    return words ^ words >> 16
