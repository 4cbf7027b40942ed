"""Row numbers from random bits, in exact integer arithmetic.

A float32 uniform has 2²³ values. Multiplying it by N leaves rows of a tall table unreachable (16 %
of them at N = 10⁷). Here a row number uses 64 random bits: ⌊w N / 2⁶⁴⌋ with w = 2³² w₀ + w₁. Its
law differs from uniform by less than N/2⁶⁴. The functions take arrays of JAX or of NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int, UInt32


def uniform_index(words: UInt32[Any, "*k 2"], n_rows: UInt32[Any, ...]) -> Int[Any, "*k"]:
    """⌊w N / 2⁶⁴⌋."""
    low_of_first = words[..., 0] * n_rows
    carried = low_of_first + high_product(words[..., 1], n_rows)
    overflow = (carried < low_of_first).astype(np.uint32)
    return (high_product(words[..., 0], n_rows) + overflow).astype(np.int32)


def high_product(a: UInt32[Any, "*k"], b: UInt32[Any, ...]) -> UInt32[Any, "*k"]:
    """⌊a b / 2³²⌋ from 16-bit halves: JAX has no 64-bit integers by default."""
    mask = np.uint32(0xFFFF)
    a_low, a_high, b_low, b_high = a & mask, a >> 16, b & mask, b >> 16
    middle = ((a_low * b_low) >> 16) + ((a_low * b_high) & mask) + ((a_high * b_low) & mask)
    return a_high * b_high + ((a_low * b_high) >> 16) + ((a_high * b_low) >> 16) + (middle >> 16)
