"""Gradient noise at positions that chains have visited, for draws with replacement.

Number the draws of a step. Let δ be the sum of w_i r_i over the even-numbered draws minus that over
the odd-numbered ones. It has the covariance of the estimate: E δδᵀ = Cov(∇f̂). It costs hardly more
than the estimate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..core.compiler import quickly_compiled
from ..core.linear_maps import AbstractLinearMap
from ..engine.chains import chains_at_once
from ..engine.kernel import AbstractKernel, Drawn, Gathered, Kernel
from ..engine.run import chain_keys
from ..engine.supply import Supply
from ..rows.base import AbstractRows
from ..rows.batch import Batch
from ..subsample.replacement import PaddedReplacement, SuppliedRows, alternating_signs

_NOISE_PURPOSE = 4  # separates the keys from those of chains
_POSITIONS = 1024


class VisitedNoise(NamedTuple):
    """Gradient noise in the coordinates of the geometry C, averaged over positions."""

    by_parameter: Float[np.ndarray, " d"]
    """Variance of (CCᵀ noise)_j."""
    squared: Float[np.ndarray, " k"]
    """‖Cᵀ noise‖² of single steps."""
    n_row_evals: int
    """Rows touched to measure it."""

    @property
    def per_coordinate(self) -> float:
        """Variance per coordinate of the geometry."""
        return float(self.squared.mean() / len(self.by_parameter))


def visited_noise(
    kernel: Kernel,
    rows: AbstractRows,
    positions: Float[np.ndarray, "chains draws d"],
    seed: int,
) -> VisitedNoise:
    """The noise of a kernel that draws with replacement, at 1,000 or more of these positions.

    Positions are taken in batches as large as a group of chains. The program that draws for chains
    then draws for them too.
    """
    dim = positions.shape[2]
    n_chains = chains_at_once(dim)
    supply = Supply(kernel, rows, [chain_keys(seed, n_chains, _NOISE_PURPOSE)])
    n_blocks = -(-_POSITIONS // (n_chains * supply.steps))
    count = n_blocks * supply.steps * n_chains
    visited = positions.reshape(-1, dim)
    chosen = visited[np.linspace(0, len(visited) - 1, count).astype(int)]
    by_block = chosen.astype(kernel.rest.dtype).reshape(n_blocks, supply.steps, n_chains, dim)
    squared, by_parameter = [], []
    for number, at in enumerate(by_block):
        supply.prepare(number, n_blocks)
        made = supply.block(0, number)
        norms, squares = _noise_of_block(supply.stepper, supply.source_of_steps, made, at)
        squared.append(np.asarray(norms, np.float64).ravel())
        by_parameter.append(np.asarray(squares, np.float64) / (count / n_blocks))
    return VisitedNoise(
        np.mean(by_parameter, axis=0), np.concatenate(squared), count * kernel.most_rows
    )


@quickly_compiled
def _noise_of_block(
    kernel: AbstractKernel,
    source: AbstractRows,
    supply: Drawn | Gathered,
    positions: Float[Any, "steps chains d"],
) -> tuple[Float[Array, "steps chains"], Float[Array, " d"]]:
    """‖Cᵀδ‖² of every position, and the sum over positions of (CCᵀδ)_j²."""
    assert isinstance(kernel, Kernel), "the kernel of a composition"
    assert isinstance(kernel.selection, SuppliedRows | PaddedReplacement), "drawn with replacement"
    n_certain = kernel.selection.n_certain
    geometry: AbstractLinearMap = kernel.dynamics.geometry  # type: ignore[attr-defined]

    def of_chain(supply: Any, position: Float[Array, " d"]) -> Float[Array, " d"]:
        gathered = supply if isinstance(supply, Gathered) else kernel.gather(supply, source)
        batch: Batch = source.complete(gathered.selection)
        signs = alternating_signs(batch.n_rows, n_certain, kernel.rest.dtype)
        signed = batch.with_weights(batch.weights * signs)
        return geometry.pull(kernel.gradient.residual_sum(position, signed, None))

    def of_step(
        total: Float[Array, " d"], step: tuple[Any, Array]
    ) -> tuple[Float[Array, " d"], Float[Array, " chains"]]:
        pulled = jax.vmap(of_chain)(*step)
        squares = jax.vmap(geometry.push)(pulled) ** 2
        return total + jnp.sum(squares, axis=0), jnp.sum(pulled**2, axis=1)

    total, norms = lax.scan(
        of_step, jnp.zeros(positions.shape[2], positions.dtype), (supply, positions)
    )
    return norms, total
