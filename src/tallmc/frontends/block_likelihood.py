"""Log-likelihoods of blocks of rows, as models of other libraries compute them.

Such a model sees all rows at once. Called with a block of rows instead, it returns one number per
row. That number is the log-likelihood of the row only if it does not depend on the other rows of
the block, which `check_block_likelihood` tries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..core.errors import InvalidInput

BlockLikelihood = Callable[[PyTree, dict[str, Array]], Float[Array, " n"]]
"""`log_likelihood(params, block)`, one number per row of the block."""

_PROBED_ROWS = (61, 59)


def probed_rows(n_rows: int) -> int:
    """How many rows a check uses: not N, so that an array of N constants does not fit."""
    first, second = _PROBED_ROWS
    return first if n_rows != first else second


@dataclasses.dataclass(frozen=True)
class OneRow:
    """The log-likelihood of one row: that of a block with this row alone."""

    log_likelihood: BlockLikelihood

    def __call__(self, params: PyTree, row: dict[str, Array]) -> Float[Array, ""]:
        return self.log_likelihood(params, {name: entry[None] for name, entry in row.items()})[0]


def check_block_likelihood(
    log_likelihood: BlockLikelihood, init: PyTree, block: dict[str, Array], cure: str
) -> None:
    """Raise unless each row of `block` has the log-likelihood that it has alone.

    The parameters are near `init`, not at it: at zero coefficients no row matters.
    """
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: leaf + jnp.asarray(0.1 * rng.normal(size=leaf.shape), leaf.dtype), init
    )
    together, alone = run_model(
        lambda: _both_ways(OneRow(log_likelihood), log_likelihood, params, block), cure
    )
    tolerance = float(np.sqrt(np.finfo(together.dtype).eps))
    if not np.allclose(together, alone, rtol=tolerance, atol=tolerance, equal_nan=True):
        rule = "give each row a log-likelihood that depends on this row alone"
        raise InvalidInput("model", rule, "one that changes with the other rows", cure)


def run_model(call: Callable[[], Any], cure: str) -> Any:
    """What `call` returns. An error of the user's model becomes one line with the cure."""
    try:
        return call()
    except InvalidInput:
        raise
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidInput("model", "run on some of the rows", message, cure) from error


def _both_ways(
    of_row: Callable[[PyTree, PyTree], Float[Array, ""]],
    of_block: BlockLikelihood,
    params: PyTree,
    block: dict[str, Array],
) -> tuple[np.ndarray, np.ndarray]:
    both = jax.jit(lambda p, b: (of_block(p, b), jax.vmap(of_row, in_axes=(None, 0))(p, b)))
    together, alone = both(params, block)
    return np.asarray(together), np.asarray(alone)
