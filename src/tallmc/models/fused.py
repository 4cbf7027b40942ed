"""Sums over rows that are known by number, on a GPU: each row is read from memory once, and nothing is written but the sum.

XLA gathers the rows into an array and reads that twice, for x_iᵀθ and for Σ c_i x_i. Here one Triton program a chain does it all,
a few rows at a time, from a copy of the data in which a row and its response fill whole cache lines. Elsewhere there is no such
copy, and rows are gathered as usual; the numbers are the same but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

_ROWS_AT_ONCE = 16  # of 8, 16 and 32, with one, two and four warps: the fastest on an H200
_WARPS = 1
_MOST_ROWS = 1024  # of a chain, which one program takes one after the other
_MOST_COLUMNS = 1024  # of which a few rows fit into a program's registers

interpret = False
"""Run the kernel step by step on any machine: for tests."""


def pack(x: Float[Array, "N d"], y: Float[Array, " N"]) -> Float[Array, "N c"] | None:
    """Rows and responses side by side, filled up with zeros to a power of two; None where the fused sum is not to be had."""
    columns = 1 << x.shape[1].bit_length()
    on_gpu = interpret or jax.default_backend() == "gpu"
    if not on_gpu or columns > _MOST_COLUMNS:
        return None
    return jnp.pad(jnp.concatenate([x, y[:, None]], axis=1), ((0, 0), (0, columns - x.shape[1] - 1)))


def is_worth_it(n: int) -> bool:
    """Whether so many rows of one chain are better summed here."""
    return n <= _MOST_ROWS


def weighted_row_sum(
    compact: Callable[[Sequence[Float[Array, " n"]], Float[Array, " n"]], Float[Array, " n"]],
    packed: Float[Array, "N c"],
    indices: Int[Array, " n"],
    weights: Float[Array, " n"],
    positions: Float[Array, "k d"],
) -> Float[Array, " d"]:
    """Σ w_i c_i x_i over these rows, where `compact(z, y)` gives the c_i from the z_k = (x_iᵀ positions_k)_i."""
    from jax.experimental import pallas as pl  # here, since it takes as long to import as half the library
    from jax.experimental.pallas import triton

    (n,), (n_positions, d), columns = indices.shape, positions.shape, packed.shape[1]
    chunks = -(-n // _ROWS_AT_ONCE)
    missing = (0, chunks * _ROWS_AT_ONCE - n)

    def kernel(index_ref, weight_ref, position_ref, packed_ref, sum_ref):  # type: ignore[no-untyped-def]
        column = jnp.arange(columns)
        at = [position_ref[k] for k in range(n_positions)]

        def add_chunk(chunk: Array, total: Float[Array, " c"]) -> Float[Array, " c"]:
            now = pl.ds(chunk * _ROWS_AT_ONCE, _ROWS_AT_ONCE)
            rows = triton.load(packed_ref.at[index_ref[now][:, None], column[None, :]])
            responses = jnp.sum(jnp.where(column[None, :] == d, rows, 0), axis=1)
            slopes = compact([jnp.sum(rows * of[None, :], axis=1) for of in at], responses)
            return total + jnp.sum((weight_ref[now] * slopes)[:, None] * rows, axis=0)

        sum_ref[...] = lax.fori_loop(0, chunks, add_chunk, jnp.zeros(columns, packed.dtype))

    total = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((columns,), packed.dtype),
        in_specs=[pl.BlockSpec(), pl.BlockSpec(), pl.BlockSpec(), pl.BlockSpec(memory_space=pl.ANY)],
        compiler_params=triton.CompilerParams(num_warps=_WARPS),
        interpret=interpret,
    )(jnp.pad(indices, missing, mode="edge"), jnp.pad(weights, missing), jnp.pad(positions, ((0, 0), (0, columns - d))), packed)
    return total[:d]
