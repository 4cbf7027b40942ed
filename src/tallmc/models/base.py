"""A model computes densities and derivatives of given rows. It holds no rows.

    f(θ) = f₀(θ) + Σ f_i(θ),   f_i = −log p(x_i | θ),   f₀ = −log prior;   the target is exp(−f)

A row's gradient is stored in a *compact* form, the cheapest one for the model. For a generalised
linear model ∇f_i = c_i x_i, and the compact form is the scalar c_i. For a general model it is the
gradient itself. Compact gradients add and subtract like gradients. `combine` turns them into
Σ w_i ∇f_i, `norms` into ‖∇f_i‖ and `expand` into ∇f_i. Estimators, weights and tables of gradients
are thus written once for all models.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..core.layout import Layout
from ..core.linear_maps import AbstractLinearMap
from ..rows.base import AbstractRows, RowBlock
from ..rows.batch import Batch
from ..rows.sums import Sum, split_sum

PIECE_ROWS = 128
"""Rows over which sums are plain; sums of pieces are more accurate."""


class AbstractModel(eqx.Module):
    """Densities and derivatives of rows.

    Positions are flat vectors; `layout` restores the user's pytree. `rows` is a block of rows.
    """

    init: eqx.AbstractVar[Float[Array, " d"]]
    layout: eqx.AbstractVar[Layout]

    @property
    @abc.abstractmethod
    def log_concave(self) -> bool:
        """Whether f is known to be convex, so that there is one mode."""

    @property
    @abc.abstractmethod
    def bounded(self) -> bool:
        """Whether exp(−f) is bounded. Otherwise a search for the mode may end in a spike."""

    @property
    def dim(self) -> int:
        """d, the number of parameters."""
        return self.init.shape[0]

    @property
    def dtype(self) -> Any:
        """The precision of positions."""
        return self.init.dtype

    def width(self, source: AbstractRows) -> int:
        """Floats that a pass needs per row: the larger of its data and its gradient."""
        return max(self.dim, source.floats_per_row)

    def prior_gradient(self, position: Float[Array, " d"]) -> Float[Array, " d"]:
        """∇f₀(θ)."""
        return jax.grad(self.prior_potential)(position)

    def potential_and_gradient(self, position: Float[Any, " d"], source: AbstractRows) -> Sum:
        """(f(θ), ∇f(θ)) in one pass over all rows. XLA drops the one not used."""
        return source.reduce(
            block_potential_and_gradient,
            self,
            position,
            width=self.width(source),
            finish=add_prior,
        )

    def full_hessian(self, position: Float[Any, " d"], source: AbstractRows) -> Sum:
        """∇²f(θ) in one pass over all rows."""
        return source.reduce(
            block_hessian_of,
            self,
            position,
            width=self.width(source),
            finish=add_prior_hessian,
        )

    @abc.abstractmethod
    def prior_potential(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        """f₀(θ) = −log prior."""

    @abc.abstractmethod
    def row_potentials(self, position: Float[Array, " d"], rows: RowBlock) -> Float[Array, " n"]:
        """f_i(θ)."""

    @abc.abstractmethod
    def row_gradients(self, position: Float[Array, " d"], rows: RowBlock) -> Float[Array, "n ..."]:
        """∇f_i(θ), compact."""

    @abc.abstractmethod
    def linear_row_gradients(
        self, centre: Float[Array, " d"], move: Float[Array, " d"], rows: RowBlock
    ) -> Float[Array, "n ..."]:
        """∇f_i(c) + ∇²f_i(c) v, compact: the gradient at c + v, to first order in v."""

    @abc.abstractmethod
    def remainders(
        self, order: int, position: Float[Array, " d"], centre: Float[Array, " d"], rows: RowBlock
    ) -> Float[Array, "n ..."]:
        """∇f_i(θ) minus the first `order` ≤ 2 terms of its Taylor series at `centre`, compact."""

    @abc.abstractmethod
    def sum_remainders(
        self, order: int, position: Float[Array, " d"], centre: Float[Array, " d"], batch: Batch
    ) -> Float[Array, " d"]:
        """Σ w_i r_i over a batch, with r_i the `remainders`."""

    @abc.abstractmethod
    def mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        positions: Float[Array, "k d"],
        metric: AbstractLinearMap,
        rows: RowBlock,
    ) -> Float[Array, " n"]:
        """The mean of ‖Cᵀr_i(θ)‖² over `positions`; r_i is the `remainders`, C the `metric`."""

    @abc.abstractmethod
    def gaussian_mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        spread: AbstractLinearMap,
        width: Float[Array, ""],
        metric: AbstractLinearMap,
        rows: RowBlock,
    ) -> Float[Array, " n"]:
        """The mean of ‖Cᵀr_i(θ)‖² over θ = centre + width · Fξ, ξ ~ N(0, I); F is the `spread`."""

    @abc.abstractmethod
    def combine(
        self, compact: Float[Array, "n ..."], rows: RowBlock, weights: Float[Array, " n"]
    ) -> Float[Array, " d"]:
        """Σ w_i ∇f_i from compact gradients."""

    @abc.abstractmethod
    def expand(self, compact: Float[Array, "n ..."], rows: RowBlock) -> Float[Array, "n d"]:
        """∇f_i from compact gradients."""

    @abc.abstractmethod
    def norms(self, compact: Float[Array, "n ..."], rows: RowBlock) -> Float[Array, " n"]:
        """‖∇f_i‖ from compact gradients."""

    @abc.abstractmethod
    def block_hessian(
        self, position: Float[Array, " d"], rows: RowBlock, weights: Float[Array, " n"]
    ) -> Float[Array, "d d"]:
        """Σ w_i ∇²f_i(θ) over these rows."""

    @abc.abstractmethod
    def curvature_norms(
        self, position: Float[Array, " d"], factor: Float[Array, "d k"], rows: RowBlock
    ) -> Float[Array, " n"]:
        """‖∇²f_i(θ) C‖_F = √tr(H_i Σ H_iᵀ) for Σ = C Cᵀ."""

    @abc.abstractmethod
    def row_lipschitz(self, rows: RowBlock) -> Float[Array, " n"]:
        """L_i with ‖∇f_i(θ) − ∇f_i(θ')‖ ≤ L_i ‖θ − θ'‖ (putcha-2023, Assumption 1)."""


def taylor_remainders(
    model: AbstractModel,
    order: int,
    position: Float[Array, " d"],
    centre: Float[Array, " d"],
    rows: RowBlock,
) -> Float[Array, "n ..."]:
    """`remainders` from row gradients, for models without a cheaper form."""
    gradients = model.row_gradients(position, rows)
    if order == 0:
        return gradients
    if order == 1:
        return gradients - model.row_gradients(centre, rows)
    return gradients - model.linear_row_gradients(centre, position - centre, rows)


def combined_remainders(
    model: AbstractModel,
    order: int,
    position: Float[Array, " d"],
    centre: Float[Array, " d"],
    batch: Batch,
) -> Float[Array, " d"]:
    """`sum_remainders` from `remainders`, for models without a cheaper form."""
    remainders = model.remainders(order, position, centre, batch.rows)
    return model.combine(remainders, batch.rows, batch.weights)


def block_potential_and_gradient(
    rows: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Float[Array, " d"]
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, " d"]]:
    """Σ f_i as (high, low), and Σ ∇f_i, over a block of rows."""
    gradient = model.sum_remainders(0, position, position, Batch(rows, counted.astype(model.dtype)))
    potentials = jnp.where(counted, model.row_potentials(position, rows), 0)
    return *split_sum(_in_pieces(potentials)), gradient


def add_prior(total: Sum, model: AbstractModel, position: Float[Array, " d"]) -> Sum:
    """(f, ∇f) from a sum of `block_potential_and_gradient`."""
    (high, remainder, gradient), (low, remainder_low, gradient_low) = total.high, total.low
    low = low + (remainder + remainder_low) + model.prior_potential(position)
    return Sum((high, gradient), (low, gradient_low + model.prior_gradient(position)))


def block_hessian_of(
    rows: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Float[Array, " d"]
) -> Float[Array, "d d"]:
    """Σ ∇²f_i over a block of rows, summed over pieces of the block.

    One matrix product over 8,192 rows in float32 has relative errors of up to 1e-4. A column with
    its mean 200 sds from zero, such as a year, then seems collinear with the intercept.
    """
    weights = counted.astype(model.dtype)
    n_rows = weights.shape[0]
    n_pieces = n_rows // PIECE_ROWS
    if n_pieces <= 1:
        return model.block_hessian(position, rows, weights)
    in_pieces = n_pieces * PIECE_ROWS
    pieces = jax.tree.map(
        lambda column: column[:in_pieces].reshape(n_pieces, PIECE_ROWS, *column.shape[1:]),
        (rows, weights),
    )
    total = jnp.sum(jax.vmap(lambda piece: model.block_hessian(position, *piece))(pieces), axis=0)
    if in_pieces < n_rows:
        rest = jax.tree.map(lambda column: column[in_pieces:], (rows, weights))
        total = total + model.block_hessian(position, *rest)
    return total


def _in_pieces(values: Float[Array, " n"]) -> Float[Array, " pieces"]:
    """Plain sums over pieces of the values."""
    missing = -values.shape[0] % PIECE_ROWS
    return jnp.sum(jnp.pad(values, (0, missing)).reshape(-1, PIECE_ROWS), axis=1)


def add_prior_hessian(total: Sum, model: AbstractModel, position: Float[Array, " d"]) -> Sum:
    """∇²f from a sum of `block_hessian_of`."""
    return Sum(total.high, total.low + jax.hessian(model.prior_potential)(position))
