"""A fused sum over rows by number on a GPU: it reads each row once and writes only the sum.

XLA gathers the rows into an array and reads the array twice, for x_iᵀθ and for Σ c_i x_i. Here one
Triton program per chain does both, a few rows at a time. It reads a copy of the data in which each
row and its response lie side by side, padded with zeros to a power of two columns. Other devices
have no such copy, and rows are gathered as usual. The results agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

_ROWS_AT_ONCE = 16  # the fastest of 8, 16, 32 with 1, 2, 4 warps on an H200
_WARPS = 1
_MAX_ROWS = 1024  # per chain: one program reads them one after another
_MAX_COLUMNS = 1024  # so that a few rows fit into the registers of a program

interpret = False
"""Whether to interpret the kernel instead of compiling it. Tests set it, to run on any machine."""


def pack(x: Float[Array, "N d"], y: Float[Array, " N"]) -> Float[Array, "N c"] | None:
    """Rows and responses side by side, padded with zeros to a power of two columns.

    None if the fused sum is not available: not on a GPU, or too many columns.
    """
    columns = 1 << x.shape[1].bit_length()
    on_gpu = interpret or jax.default_backend() == "gpu"
    if not on_gpu or columns > _MAX_COLUMNS:
        return None
    return jnp.pad(
        jnp.concatenate([x, y[:, None]], axis=1), ((0, 0), (0, columns - x.shape[1] - 1))
    )


def is_worth_it(n: int) -> bool:
    """Whether the fused sum is faster for `n` rows per chain."""
    return n <= _MAX_ROWS


def weighted_row_sum(
    compact: Callable[[Sequence[Float[Array, " n"]], Float[Array, " n"]], Float[Array, " n"]],
    packed: Float[Array, "N c"],
    indices: Int[Array, " n"],
    weights: Float[Array, " n"],
    positions: Float[Array, "k d"],
) -> Float[Array, " d"]:
    """Σ w_i c_i x_i. `compact(z, y)` returns the c_i of rows with z_k = x_iᵀ positions_k."""
    # Imported here: Pallas takes as long to import as half the library.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (n,), (n_positions, d), columns = indices.shape, positions.shape, packed.shape[1]
    chunks = -(-n // _ROWS_AT_ONCE)
    padding = (0, chunks * _ROWS_AT_ONCE - n)

    def kernel(index_ref, weight_ref, position_ref, packed_ref, sum_ref):  # type: ignore[no-untyped-def]
        column = jnp.arange(columns)
        vectors = [position_ref[k] for k in range(n_positions)]

        def add_chunk(chunk: Array, total: Float[Array, " c"]) -> Float[Array, " c"]:
            in_chunk = pl.ds(chunk * _ROWS_AT_ONCE, _ROWS_AT_ONCE)
            rows = triton.load(packed_ref.at[index_ref[in_chunk][:, None], column[None, :]])
            responses = jnp.sum(jnp.where(column[None, :] == d, rows, 0), axis=1)
            slopes = compact([jnp.sum(rows * v[None, :], axis=1) for v in vectors], responses)
            return total + jnp.sum((weight_ref[in_chunk] * slopes)[:, None] * rows, axis=0)

        sum_ref[...] = lax.fori_loop(0, chunks, add_chunk, jnp.zeros(columns, packed.dtype))

    total = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((columns,), packed.dtype),
        in_specs=[
            pl.BlockSpec(),
            pl.BlockSpec(),
            pl.BlockSpec(),
            pl.BlockSpec(memory_space=pl.ANY),
        ],
        compiler_params=triton.CompilerParams(num_warps=_WARPS),
        interpret=interpret,
    )(
        jnp.pad(indices, padding, mode="edge"),
        jnp.pad(weights, padding),
        jnp.pad(positions, ((0, 0), (0, columns - d))),
        packed,
    )
    return total[:d]
