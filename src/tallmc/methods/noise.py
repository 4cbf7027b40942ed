"""Gradient noise near the mode, and how much it inflates the variances of Langevin dynamics.

On a Gaussian with precision H, Langevin steps of size ε with gradient noise of covariance V have a
stationary covariance of H⁻¹ + X to first order in ε, where X solves HX + XH = (ε/2) V.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from ..anchor.anchor import Anchor
from ..core.compiler import quickly_compiled
from ..core.random import new_key, standard_normal
from ..engine.kernel import AbstractKernel, BoundKernel, Drawn, Gathered, Kernel
from ..engine.run import chain_keys
from ..engine.supply import Supply
from ..rows.base import AbstractRows
from ..subsample.selection import Memory

_POSITIONS = 8
_BATCHES = 64  # per position
_NOISE_PURPOSE = 3  # separates the keys from those of the run


@dataclasses.dataclass(frozen=True)
class GradientNoise:
    """Covariance of the gradient estimate, averaged over draws of the anchor's Gaussian."""

    covariance: Float[np.ndarray, "d d"]
    n_row_evals: int
    """Rows touched to measure it."""


def gradient_noise(bound: BoundKernel, anchor: Anchor, seed: int = 0) -> GradientNoise:
    """Measure the gradient noise of a kernel at draws of the anchor's Gaussian.

    An estimator with a memory has learned it at other draws of the Gaussian.
    """
    kernel, rows = bound.composition, bound.rows
    assert anchor.factor is not None, "the anchor has a Hessian"
    normal = standard_normal(
        jax.random.fold_in(new_key(seed), _NOISE_PURPOSE),
        (2, _POSITIONS, anchor.position.shape[0]),
        anchor.position.dtype,
    )
    here, elsewhere = anchor.position + jnp.einsum("ij,pkj->pki", anchor.factor, normal)
    memory = kernel.start_memory(elsewhere, rows)
    supply = Supply(kernel, rows, [chain_keys(seed, _POSITIONS, _NOISE_PURPOSE)])
    steps = min(supply.steps, _BATCHES)
    n_blocks = -(-_BATCHES // steps)
    gradients, touched = [], 0
    for number in range(n_blocks):
        supply.prepare(number, n_blocks)
        made = jax.tree.map(lambda leaf: leaf[:steps], supply.block(0, number))
        found, n_rows = _estimates(supply.stepper, supply.source_of_steps, made, here, memory)
        gradients.append(np.asarray(found, np.float64))
        touched += int(np.asarray(n_rows).sum())
    errors = np.concatenate(gradients)
    batches = len(errors)
    errors = (errors - errors.mean(axis=0)).reshape(-1, errors.shape[2])
    covariance = errors.T @ errors / (_POSITIONS * (batches - 1))
    passes = int(kernel.passes_before(np.asarray(1)))
    return GradientNoise(covariance, touched + _POSITIONS * passes * rows.n_rows)


@quickly_compiled
def _estimates(
    kernel: AbstractKernel,
    source: AbstractRows,
    supply: Drawn | Gathered,
    positions: Float[Array, "k d"],
    memory: Memory,
) -> tuple[Float[Array, "batches k d"], Int[Array, "batches k"]]:
    """Gradient estimates from independent batches at each position, and the rows they touched."""
    assert isinstance(kernel, Kernel), "the kernel of a composition"

    def at_position(
        made: Any, position: Float[Array, " d"], learned: Memory
    ) -> tuple[Float[Array, " d"], Int[Array, ""]]:
        gathered = made if isinstance(made, Gathered) else kernel.gather(made, source)
        known = Memory(learned.gradient, kernel.selection.start(gathered.selection), learned.noise)
        estimate = kernel.estimate(position, gathered.selection, source, known)
        return estimate.gradient, jnp.asarray(estimate.n_rows)

    return lax.map(lambda made: jax.vmap(at_position)(made, positions, memory), supply)


def inflation_rate(
    hessian: Float[np.ndarray, "d d"],
    noise: Float[np.ndarray, "d d"],
    coordinates: Float[np.ndarray, "d d"] | None,
) -> float:
    """Relative inflation of the worst parameter's variance, per unit of step size.

    **Arguments:**

    - `hessian`: H.
    - `noise`: V, the covariance of the gradient estimate.
    - `coordinates`: C, if the dynamics moves in coordinates u with θ = Cu.

    **Returns:** the largest X_jj/(H⁻¹)_jj for ε = 1.

    >>> import numpy as np
    >>> inflation_rate(np.diag([1.0, 4.0]), np.diag([2.0, 8.0]), None)
    2.0
    """
    C = np.eye(len(hessian)) if coordinates is None else coordinates
    values, vectors = np.linalg.eigh(C.T @ hessian @ C)
    axes = C @ vectors
    in_axes = axes.T @ noise @ axes
    added = in_axes / (2 * (values[:, None] + values[None, :]))
    variances = np.einsum("ja,a,ja->j", axes, 1 / values, axes)
    return float(np.max(np.einsum("ja,ab,jb->j", axes, added, axes) / variances))
