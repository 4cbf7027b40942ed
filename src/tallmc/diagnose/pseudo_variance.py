"""Pseudo-variance of a gradient estimate: its noise tr Cov(Cᵀ∇f̂(θ)) in the metric of a geometry C.

With residuals r_i(θ), for n draws from p and for n rows without replacement (putcha-2023,
section 3, where C = I),

    tr Cov(Cᵀ∇f̂) = (1/n) ( Σ ‖Cᵀr_i‖²/p_i − ‖Σ Cᵀr_i‖² )
    tr Cov(Cᵀ∇f̂) = N(N − n)/(n(N − 1)) ( Σ ‖Cᵀr_i‖² − ‖Σ Cᵀr_i‖²/N )

Rows that are in every batch cause no noise and enter neither sum. One pass over the rows gives the
exact value. The spread within each batch of the method gives an unbiased estimate. An estimator
with memory is evaluated with the memory of a chain that starts at the anchor, before its first
step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray

from ..core.errors import InvalidInput, check_int
from ..core.linear_maps import AbstractLinearMap, IdentityMap
from ..core.random import new_key
from ..engine.kernel import BoundKernel, Kernel
from ..models.posterior import check_in_memory
from ..rows.base import AbstractRows, RowBlock
from ..rows.stream import AbstractStream
from ..rows.sums import split_sum
from ..subsample.bandit import BanditSelection
from ..subsample.full import AllRowsSelection
from ..subsample.optimal import OptimalSelection
from ..subsample.replacement import WithReplacement
from ..subsample.selection import AbstractStaticSelection, Memory
from ..subsample.size import AdaptiveSelection
from ..subsample.uniform import WithoutReplacement

_BATCHES_AT_ONCE = 64


class Estimated(NamedTuple):
    """An estimate with its Monte Carlo standard error.

    **Arguments:**

    - `value`: the estimate.
    - `standard_error`: its standard error.

    >>> Estimated(value=0.5, standard_error=0.01).value
    0.5
    """

    value: float
    standard_error: float


def pseudo_variance(
    kernel: BoundKernel, position: ArrayLike, *, geometry: AbstractLinearMap | None = None
) -> float:
    """Exact tr Cov(Cᵀ∇f̂) of a prepared method at `position`, in one pass over the rows.

    **Arguments:**

    - `kernel`: the kernel of a prepared method, `method.prepare(posterior).kernel`.
    - `position`: θ, one value per coordinate.
    - `geometry`: C. Defaults to the identity.

    **Returns:** the pseudo-variance.

    **Raises:** `InvalidInput` if the subsample has no known probabilities, or if `position` is
    invalid.

    >>> import tallmc
    >>> X, y = [[1.0], [2.0]], [0.0, 1.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=10.0, noise_variance=1.0)
    >>> kernel = tallmc.sgld(step_size=0.1, size=1).prepare(posterior).kernel
    >>> pseudo_variance(kernel, [1.0])                       # ∇f_i is 1 or 2; its weight is 2
    1.0
    """
    composition, source, theta = _checked(kernel, position)
    memory = _memory_at_start(composition, source)
    coefficients, coefficient_of_sum = _coefficients(composition, source, theta, memory)
    total = source.reduce(
        _spread_sums,
        composition,
        theta,
        memory,
        geometry or IdentityMap(),
        width=composition.model.width(source),
        beside=(jnp.arange(source.n_rows), coefficients),
    )
    squares_high, squares_low, residual_sum = total.float64()
    squares = squares_high + squares_low
    weight = float(np.asarray(coefficient_of_sum))
    return float(squares - weight * np.sum(residual_sum**2))


def estimated_pseudo_variance(
    kernel: BoundKernel,
    position: ArrayLike,
    *,
    batches: int = 1000,
    geometry: AbstractLinearMap | None = None,
    seed: int = 0,
) -> Estimated:
    """Unbiased estimate of tr Cov(Cᵀ∇f̂) at `position` from batches of a prepared method.

    **Arguments:**

    - `kernel`: the kernel of a prepared method, `method.prepare(posterior).kernel`.
    - `position`: θ, one value per coordinate.
    - `batches`: the number of batches.
    - `geometry`: C. Defaults to the identity.
    - `seed`: seed of the batches.

    **Returns:** an `Estimated`.

    **Raises:** `InvalidInput` if the subsample does not provide the spread of a batch, or if a
    batch has too few rows for it.

    >>> import tallmc
    >>> X, y = [[1.0], [2.0]], [0.0, 1.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=10.0, noise_variance=1.0)
    >>> kernel = tallmc.sgld(step_size=0.1, size=2).prepare(posterior).kernel
    >>> round(estimated_pseudo_variance(kernel, [1.0], batches=100_000).value, 2)    # exact: 0.5
    0.5
    """
    composition, source, theta = _checked(kernel, position)
    batches = check_int("batches", batches, 2)
    if not isinstance(
        composition.selection, AbstractStaticSelection | BanditSelection | OptimalSelection
    ):
        raise InvalidInput(
            "kernel",
            "have a subsample that provides the spread of a batch",
            type(composition.selection).__name__,
        )
    memory = _memory_at_start(composition, source)
    metric = geometry or IdentityMap()
    values = np.asarray(
        _batch_estimates(composition, source, theta, memory, new_key(seed), batches, metric),
        np.float64,
    )
    if not np.isfinite(values).all():
        raise InvalidInput(
            "kernel",
            "draw at least two rows per batch, and per stratum if it has strata",
            "a batch without spread",
            "Use a larger size.",
        )
    return Estimated(float(values.mean()), float(values.std(ddof=1) / np.sqrt(batches)))


def _checked(
    kernel: BoundKernel, position: ArrayLike
) -> tuple[Kernel, AbstractRows, Float[Array, " d"]]:
    if not isinstance(kernel, BoundKernel) or not isinstance(kernel.kernel, Kernel):
        cure = "For example tallmc.sgld(...).prepare(posterior).kernel."
        raise InvalidInput(
            "kernel", "come from a prepared method with a gradient", type(kernel).__name__, cure
        )
    posterior = kernel.posterior
    check_in_memory(posterior, "1/p of every row is needed at once", "Use a part of the rows.")
    theta = jnp.asarray(position, posterior.dtype)
    if theta.shape != (posterior.dim,) or not bool(jnp.all(jnp.isfinite(theta))):
        raise InvalidInput(
            "position", f"be finite, with one value per coordinate ({posterior.dim})", position
        )
    return kernel.kernel, posterior.rows, theta


def _memory_at_start(kernel: Kernel, source: AbstractRows) -> Memory:
    """The memory of a chain that starts at the anchor, before its first step."""
    started = kernel.start_memory(kernel.rest[None], source)
    drawn = jax.tree.map(lambda leaf: leaf[0], kernel.selection.draw(new_key(0), 1))
    selection = kernel.selection.start(kernel.selection.gather(drawn, source))
    return Memory(jax.tree.map(lambda leaf: leaf[0], started.gradient), selection)


def _spread_sums(
    rows: RowBlock,
    beside: tuple[Array, Array],
    counted: Bool[Array, " n"],
    kernel: Kernel,
    position: Float[Array, " d"],
    memory: Memory,
    geometry: AbstractLinearMap,
) -> tuple[Array, Array, Array]:
    """Σ a_i ‖Cᵀr_i‖² as the two parts of `split_sum`, and Σ Cᵀr_i over the rows with a_i > 0."""
    indices, coefficient = beside
    coefficient = jnp.where(counted, coefficient, 0)
    residuals = kernel.gradient.residuals(position, rows, indices, memory.gradient)
    pulled = geometry.pull(kernel.model.expand(residuals, rows))
    squares = split_sum(coefficient * jnp.sum(pulled**2, axis=1))
    return *squares, jnp.sum(pulled, axis=0, where=coefficient[:, None] > 0)


def _coefficients(
    kernel: Kernel, source: AbstractRows, position: Float[Array, " d"], memory: Memory
) -> tuple[Float[Array, " N"], Float[ArrayLike, ""]]:
    """a_i and b in tr Cov = Σ a_i ‖Cᵀr_i‖² − b ‖Σ Cᵀr_i‖².

    The second sum runs over the rows with a_i > 0.
    """
    selection, dtype, N = kernel.selection, kernel.model.dtype, source.n_rows
    every_row = jnp.arange(N)
    match selection:
        case AllRowsSelection():
            return jnp.zeros(N, dtype), 0.0
        case WithReplacement():
            inverse = _inverse_probabilities(selection.stream, dtype).at[selection.certain].set(0)
            return inverse / selection.draws, 1 / selection.draws
        case AdaptiveSelection():
            size = selection.size_at(position)
            return _inverse_probabilities(selection.stream, dtype) / size, 1 / size
        case OptimalSelection():
            units = selection.units(kernel.gradient, position, source, memory.gradient)
            return selection.draws_at(units, every_row, dtype).weights, 1 / selection.size
        case WithoutReplacement():
            coefficient = N * (N - selection.size) / (selection.size * max(N - 1, 1))
            return jnp.full(N, coefficient, dtype), coefficient / N
    rule = "draw rows with known probabilities, or without replacement"
    raise InvalidInput(
        "kernel", rule, type(selection).__name__, "Try estimated_pseudo_variance(...)."
    )


def _inverse_probabilities(stream: AbstractStream, dtype: Any) -> Float[Array, " N"]:
    """1/p per row, and zero for rows that are never drawn."""
    p = stream.probabilities()
    return jnp.asarray(np.divide(1.0, p, out=np.zeros_like(p), where=p > 0), dtype)


@eqx.filter_jit
def _batch_estimates(
    kernel: Kernel,
    source: AbstractRows,
    position: Float[Array, " d"],
    memory: Memory,
    key: PRNGKeyArray,
    batches: int,
    geometry: AbstractLinearMap,
) -> Float[Array, " batches"]:
    """Σ ‖Cᵀs_i‖² per batch, an unbiased estimate of the pseudo-variance."""
    selection = kernel.selection

    def estimate_of_batch(drawn: Any) -> Float[Array, ""]:
        gathered = selection.gather(drawn, source)
        estimate = selection.estimate(kernel.gradient, position, memory, gathered, source, None)
        assert estimate.spread is not None, "the caller checked that the selection has a spread"
        return jnp.sum(geometry.pull(estimate.spread) ** 2)

    return lax.map(estimate_of_batch, selection.draw(key, batches), batch_size=_BATCHES_AT_ONCE)
