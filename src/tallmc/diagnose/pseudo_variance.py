"""The pseudo-variance of a gradient estimate, tr Cov(Cᵀ∇f̂(θ)): how noisy it is at a position, in the metric of a geometry C.

With residuals r_i(θ), in n draws from p and in n rows without replacement (putcha-2023, section 3, where C = I),

    tr Cov(Cᵀ∇f̂) = (1/n) ( Σ ‖Cᵀr_i‖²/p_i − ‖Σ Cᵀr_i‖² )
    tr Cov(Cᵀ∇f̂) = N(N − n)/(n(N − 1)) ( Σ ‖Cᵀr_i‖² − ‖Σ Cᵀr_i‖²/N )

Rows that are in every batch make no noise and count in neither sum. A pass over the rows gives it exactly; batches of the method
estimate it, unbiased, from the spread within each. What an estimator has learned is what it knows of a chain that starts at the
anchor, before the first step.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from .._errors import InvalidInput, check_int
from .._kernel import AbstractKernel, Kernel, Supply
from .._random import new_key
from .._rows import Sum, split_sum, sum_rows
from ..geometry import AbstractGeometry, IdentityGeometry
from ..subsample.bandit import BanditSelection
from ..subsample.full import AllRowsSelection
from ..subsample.optimal import OptimalSelection
from ..subsample.replacement import WithReplacement
from ..subsample.selection import AbstractStaticSelection, Memory
from ..subsample.size import AdaptiveSelection
from ..subsample.uniform import WithoutReplacement

_AT_ONCE = 64  # batches looked at together


class Estimated(NamedTuple):
    value: float
    standard_error: float


def pseudo_variance(kernel: AbstractKernel, position: ArrayLike, *, geometry: AbstractGeometry | None = None) -> float:
    """tr Cov(Cᵀ∇f̂) at `position`, exact, of a prepared method. `geometry` is C, the identity unless given.

    >>> import tallmc
    >>> posterior = tallmc.models.linear_regression([[1.0], [2.0]], [0.0, 1.0], prior_variance=10.0)
    >>> kernel = tallmc.sgld(step_size=0.1, size=1).prepare(posterior).kernel
    >>> pseudo_variance(kernel, [1.0])                          # ∇f_i is 1 or 2, its weight 2
    1.0
    """
    kernel, at = _checked(kernel, position)
    sums, of_square = _sums(kernel, at, geometry or IdentityGeometry())
    squares, lost, total = sums.float64()
    return float(squares + lost - float(of_square) * np.sum(total**2))


def estimated_pseudo_variance(
    kernel: AbstractKernel,
    position: ArrayLike,
    *,
    batches: int = 1000,
    geometry: AbstractGeometry | None = None,
    seed: int = 0,
) -> Estimated:
    """tr Cov(Cᵀ∇f̂) at `position` from `batches` batches of a prepared method whose subsample knows its spread.

    >>> import tallmc
    >>> posterior = tallmc.models.linear_regression([[1.0], [2.0]], [0.0, 1.0], prior_variance=10.0)
    >>> kernel = tallmc.sgld(step_size=0.1, size=2).prepare(posterior).kernel
    >>> pseudo_variance(kernel, [1.0]), round(estimated_pseudo_variance(kernel, [1.0], batches=100_000).value, 2)
    (0.5, 0.5)
    """
    kernel, at = _checked(kernel, position)
    batches = check_int("batches", batches, 2)
    if not isinstance(kernel.selection, AbstractStaticSelection | BanditSelection | OptimalSelection):
        raise InvalidInput("kernel", "have a subsample that knows its spread", type(kernel.selection).__name__)
    values = np.asarray(_spreads(kernel, at, new_key(seed), batches, geometry or IdentityGeometry()), np.float64)
    if not np.isfinite(values).all():
        raise InvalidInput("kernel", "draw two rows or more, of a stratum too", "a batch without spread", "Take a larger size.")
    return Estimated(float(values.mean()), float(values.std(ddof=1) / np.sqrt(batches)))


def _checked(kernel: AbstractKernel, position: ArrayLike) -> tuple[Kernel, Float[Array, " d"]]:
    if not isinstance(kernel, Kernel):
        cure = "As in tallmc.sgld(...).prepare(posterior).kernel."
        raise InvalidInput("kernel", "be that of a prepared method with a gradient", type(kernel).__name__, cure)
    at = jnp.asarray(position, kernel.posterior.dtype)
    if at.shape != (kernel.posterior.dim,) or not bool(jnp.all(jnp.isfinite(at))):
        raise InvalidInput("position", f"be finite, with one value a coordinate ({kernel.posterior.dim})", position)
    return kernel, at


def _memory_at_start(kernel: Kernel) -> Memory:
    picks = jax.tree.map(lambda leaf: leaf[0], kernel.selection.supply(new_key(0), 1))
    return Memory(kernel.gradient.start(kernel.rest), kernel.selection.start(kernel.gather(Supply(picks, None)).rows))


@eqx.filter_jit
def _sums(kernel: Kernel, position: Float[Array, " d"], geometry: AbstractGeometry) -> tuple[Sum, Float[Array, ""]]:
    """Σ a_i ‖Cᵀr_i‖², in two parts, and Σ Cᵀr_i; and b."""
    posterior, memory = kernel.posterior, _memory_at_start(kernel)
    coefficients, of_square = _coefficients(kernel, position, memory)

    def block(numbered: PyTree[Array]) -> tuple[Array, Array, Array]:
        rows, indices, coefficient = numbered
        residuals = kernel.gradient.residuals(position, rows, indices, memory.gradient)
        pulled = geometry.pull(posterior.expand(residuals, rows))
        return *split_sum(coefficient * jnp.sum(pulled**2, axis=1)), jnp.sum(pulled, axis=0, where=coefficient[:, None] > 0)

    numbers = jnp.arange(posterior.n_rows)
    return sum_rows(block, (posterior.data, numbers, coefficients), posterior.width), jnp.asarray(of_square)


def _coefficients(
    kernel: Kernel, position: Float[Array, " d"], memory: Memory
) -> tuple[Float[Array, " N"], Float[ArrayLike, ""]]:
    """a_i and b in tr Cov = Σ a_i ‖Cᵀr_i‖² − b ‖Σ Cᵀr_i‖², the second sum over the rows with a_i > 0."""
    selection, posterior, N = kernel.selection, kernel.posterior, kernel.posterior.n_rows
    every_row = jnp.arange(N)
    match selection:
        case AllRowsSelection():
            return jnp.zeros(N, posterior.dtype), 0.0
        case WithReplacement():
            inverse = selection.law.inverse_probability(every_row).at[selection.certain].set(0)
            return inverse / selection.draws, 1 / selection.draws
        case AdaptiveSelection():
            size = selection.size_at(position)
            return selection.law.inverse_probability(every_row) / size, 1 / size
        case OptimalSelection():
            units = selection.units(kernel.gradient, position, memory.gradient)
            return selection.picks_at(units, every_row, posterior.dtype).weights, 1 / selection.size
        case WithoutReplacement():
            each = N * (N - selection.size) / (selection.size * max(N - 1, 1))
            return jnp.full(N, each, posterior.dtype), each / N
    rule = "draw from a law that is known, or without replacement"
    raise InvalidInput("kernel", rule, type(selection).__name__, "Try estimated_pseudo_variance(...).")


@eqx.filter_jit
def _spreads(
    kernel: Kernel, position: Float[Array, " d"], key: PRNGKeyArray, batches: int, geometry: AbstractGeometry
) -> Float[Array, " batches"]:
    """Σ ‖Cᵀs_i‖² of each batch."""
    memory = _memory_at_start(kernel)

    def of_batch(supply: PyTree[Array]) -> Float[Array, ""]:
        rows = kernel.gather(Supply(supply, None)).rows
        estimate = kernel.selection.estimate(kernel.gradient, position, memory, rows, None)
        assert estimate.spread is not None, "its subsample was checked to know it"
        return jnp.sum(geometry.pull(estimate.spread) ** 2)

    return lax.map(of_batch, kernel.selection.supply(key, batches), batch_size=_AT_ONCE)
