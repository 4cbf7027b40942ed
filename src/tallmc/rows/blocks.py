"""Blocks of rows in a pass. The numbers of a block fit in cache, and its plain sum is accurate."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

_BLOCK_FLOATS = 2**19
_BLOCK_ROWS = 2**13


def block_rows(n_rows: int, width: int) -> int:
    """Rows per block, for a computation that needs `width` floats per row."""
    return max(1, min(n_rows, _BLOCK_ROWS, _BLOCK_FLOATS // max(1, width)))


class BlockSubset(eqx.Module):
    """The first `count` blocks in `order`. `count` is traced; changing it does not recompile."""

    order: Int[Array, " blocks"]
    count: Int[Array, ""]
    block: int = eqx.field(static=True)
    """Rows per block."""
    total: int = eqx.field(static=True)
    """Rows of the whole data set."""

    @classmethod
    def random(cls, n_rows: int, width: int, share: float) -> BlockSubset:
        """Random blocks with about this `share` of the rows; with `share = 1`, all rows."""
        block = block_rows(n_rows, width)
        order = np.random.default_rng(0).permutation(n_rows // block)
        count = max(1, round(share * len(order)))
        return cls(jnp.asarray(order, jnp.int32), jnp.int32(count), block, n_rows)

    @property
    def n_rows(self) -> int:
        """Rows in this subset. A subset of all blocks also has the rows after the last block."""
        count = int(self.count)
        return self.total if count == len(self.order) else count * self.block
