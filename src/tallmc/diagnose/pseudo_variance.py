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

from .._core.arrays import AbstractLinearMap, IdentityMap
from .._core.errors import InvalidInput, check_int
from .._core.random import new_key
from .._engine.kernel import BoundKernel, Kernel
from .._rows.access import AbstractRows, RowBlock
from .._rows.law import AbstractStream
from .._rows.passes import split_sum
from ..models.posterior import check_in_memory
from ..subsample.bandit import BanditSelection
from ..subsample.bounded_noise import AdaptiveSelection
from ..subsample.optimal import OptimalSelection
from ..subsample.selection import AbstractStaticSelection, Carried, GradientAt, WithReplacement
from ..subsample.uniform import AllRowsSelection, WithoutReplacement

_BATCHES_AT_ONCE = 64


class Estimated(NamedTuple):
    """An estimate with its Monte Carlo standard error."""

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
    """
    at, rows = _checked(kernel, position), kernel.posterior.rows
    coefficients, coefficient_of_sum = _coefficients(at, rows)
    total = rows.reduce(
        _spread_sums,
        *(at, geometry or IdentityMap()),
        width=at.kernel.model.width(rows),
        beside=(jnp.arange(rows.n_rows), coefficients),
    )
    squares_high, squares_low, residual_sum = total.float64()
    weight = float(np.asarray(coefficient_of_sum))
    return float(squares_high + squares_low - weight * np.sum(residual_sum**2))


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
    """
    at = _checked(kernel, position)
    batches = check_int("batches", batches, 2)
    selection = at.kernel.selection
    if not isinstance(selection, AbstractStaticSelection | BanditSelection | OptimalSelection):
        rule = "have a subsample that provides the spread of a batch"
        raise InvalidInput("kernel", rule, type(selection).__name__)
    metric, rows = geometry or IdentityMap(), kernel.posterior.rows
    values = np.asarray(_batch_estimates(at, rows, new_key(seed), batches, metric), np.float64)
    if not np.isfinite(values).all():
        rule = "draw at least two rows per batch, and per stratum if it has strata"
        raise InvalidInput("kernel", rule, "a batch without spread", "Use a larger size.")
    return Estimated(float(values.mean()), float(values.std(ddof=1) / np.sqrt(batches)))


class _At(NamedTuple):
    """Where the noise of a method is measured: with the memory of a chain that starts there."""

    kernel: Kernel
    position: Float[Array, " d"]
    carried: Carried
    """Of a chain that starts at the anchor, before its first step."""


def _checked(bound: BoundKernel, position: ArrayLike) -> _At:
    if not isinstance(bound, BoundKernel) or not isinstance(bound.kernel, Kernel):
        cure = "For example tallmc.methods.sgld(...).prepare(posterior).kernel."
        rule = "come from a prepared method with a gradient"
        raise InvalidInput("kernel", rule, type(bound).__name__, cure)
    posterior, kernel = bound.posterior, bound.kernel
    check_in_memory(posterior, "1/p of every row is needed at once", "Use a part of the rows.")
    theta = jnp.asarray(position, posterior.dtype)
    if theta.shape != (posterior.dim,) or not bool(jnp.all(jnp.isfinite(theta))):
        rule = f"be finite, with one value per coordinate ({posterior.dim})"
        raise InvalidInput("position", rule, position)
    started = kernel.start_memory(kernel.rest[None], posterior.rows)
    drawn = jax.tree.map(lambda leaf: leaf[0], kernel.selection.draw(new_key(0), 1))
    selection = kernel.selection.start(kernel.selection.gather(drawn, posterior.rows))
    carried = Carried(jax.tree.map(lambda leaf: leaf[0], started.gradient), selection)
    return _At(kernel, theta, carried)


def _spread_sums(
    block: RowBlock,
    beside: tuple[Array, Array],
    counted: Bool[Array, " n"],
    at: _At,
    geometry: AbstractLinearMap,
) -> tuple[Array, Array, Array]:
    """Σ a_i ‖Cᵀr_i‖² as the two parts of `split_sum`, and Σ Cᵀr_i over the rows with a_i > 0."""
    indices, coefficient = beside
    coefficient = jnp.where(counted, coefficient, 0)
    gradient, model = at.kernel.gradient, at.kernel.model
    residuals = gradient.residuals(at.position, block, indices, at.carried.gradient)
    pulled = geometry.pull(model.expand(residuals, block))
    squares = split_sum(coefficient * jnp.sum(pulled**2, axis=1))
    return *squares, jnp.sum(pulled, axis=0, where=coefficient[:, None] > 0)


def _coefficients(at: _At, rows: AbstractRows) -> tuple[Float[Array, " N"], Float[ArrayLike, ""]]:
    """a_i and b in tr Cov = Σ a_i ‖Cᵀr_i‖² − b ‖Σ Cᵀr_i‖², the second over rows with a_i > 0."""
    kernel, position, carried = at
    selection, dtype, N = kernel.selection, kernel.model.dtype, rows.n_rows
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
            units = selection.units(kernel.gradient, position, rows, carried.gradient)
            return selection.draws_at(units, every_row, dtype).weights, 1 / selection.size
        case WithoutReplacement():
            coefficient = N * (N - selection.size) / (selection.size * max(N - 1, 1))
            return jnp.full(N, coefficient, dtype), coefficient / N
    rule = "draw rows with known probabilities, or without replacement"
    cure = "Try estimated_pseudo_variance(...)."
    raise InvalidInput("kernel", rule, type(selection).__name__, cure)


def _inverse_probabilities(stream: AbstractStream, dtype: Any) -> Float[Array, " N"]:
    """1/p per row, and zero for rows that are never drawn."""
    p = stream.probabilities()
    return jnp.asarray(np.divide(1.0, p, out=np.zeros_like(p), where=p > 0), dtype)


@eqx.filter_jit
def _batch_estimates(
    at: _At, rows: AbstractRows, key: PRNGKeyArray, batches: int, geometry: AbstractLinearMap
) -> Float[Array, " batches"]:
    """Σ ‖Cᵀs_i‖² per batch, an unbiased estimate of the pseudo-variance."""
    kernel, position, carried = at
    selection, gradient_at = kernel.selection, GradientAt(kernel.gradient, position, carried, rows)

    def estimate_of_batch(drawn: Any) -> Float[Array, ""]:
        gathered = selection.gather(drawn, rows)
        estimate = selection.estimate(gradient_at, gathered)
        assert estimate.spread is not None, "the caller checked that the selection has a spread"
        return jnp.sum(geometry.pull(estimate.spread) ** 2)

    return lax.map(estimate_of_batch, selection.draw(key, batches), batch_size=_BATCHES_AT_ONCE)
