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
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PyTree

from .._core.arrays import AbstractLinearMap, Layout, Matrix, Scalar, Vector, dot
from .._core.errors import InvalidInput
from .._core.random import new_key, standard_normal
from .._rows.access import AbstractRows, PerRow, RowBlock
from .._rows.law import Batch
from .._rows.passes import Sum, split_sum
from .priors import ScaleMixturePrior

Compact = Float[Array, "n ..."]
"""Compact gradients of a block of rows."""
Moves = Float[Array, "k d"]
"""Some positions, or moves away from one."""

GAUSS_NODES = 5
PIECE_ROWS = 128
"""Rows over which sums are plain; sums of pieces are more accurate."""
_POTENTIAL_ROWS = 8
"""The same for potentials: an accept step needs small differences of large sums."""


# Means of ‖Cᵀr_i‖² by random probes, for models without a closed form.
#
#     ‖Cᵀr‖² = E (ζᵀCᵀr)²,   ζ ~ N(0, I)
#
# With a few ζ per position, no row needs the O(d²) product Cᵀr_i. The probes are fixed, so the
# result is reproducible.
_N_POSITIONS = 16
_N_DIRECTIONS = 4


class EffectTerm(NamedTuple):
    """Effects u_g ~ N(0, Σ) of some groups, one per column, and where they lie."""

    start: int
    """Where the effects begin in a position, group after group."""
    n_groups: int
    n_columns: int
    hyper: int
    """Where the log sds begin; the free forms of the correlations follow."""

    @property
    def effects(self) -> slice:
        return slice(self.start, self.start + self.n_groups * self.n_columns)

    def hyper_of(self, position: Vector) -> Float[Array, " h"]:
        """(log τ, c), of which `factor_of` makes Σ."""
        return position[self.hyper : self.hyper + self.n_columns * (self.n_columns + 1) // 2]

    def by_group(self, values: Float[Any, " d"]) -> Float[Any, "G r"]:
        """What a vector like a position has at the effects."""
        return values[self.effects].reshape(self.n_groups, self.n_columns)


class AbstractModel(eqx.Module):
    """Densities and derivatives of rows: −log p(x_i | θ) and −log prior are required.

    Everything else has a default by automatic differentiation, whose compact gradients are the
    gradients themselves. A model with closed forms overrides what they make faster. If its compact
    gradients are smaller than d numbers, it overrides `row_gradients`, `remainders`,
    `sum_remainders`, `combine`, `expand`, `norms`, `along` and `curvature_norms` together.

    Positions are flat vectors; `layout` restores the user's pytree. `block` is a block of rows.
    """

    init: eqx.AbstractVar[Vector]
    layout: eqx.AbstractVar[Layout]

    cubic_cost: ClassVar[int] = 1
    """What third derivatives of a row take, in those of closed forms."""
    one_predictor: ClassVar[bool] = False
    """Whether a row is a function of one predictor x_iᵀθ + o_i, with closed derivatives."""

    @abc.abstractmethod
    def prior_potential(self, position: Vector) -> Scalar:
        """f₀(θ) = −log prior."""

    @abc.abstractmethod
    def row_potentials(self, position: Vector, block: RowBlock) -> PerRow:
        """f_i(θ)."""

    # What is known about f.

    @property
    def log_concave(self) -> bool:
        """Whether f is known to be convex, so that there is one mode."""
        return False

    @property
    def bounded(self) -> bool:
        """Whether exp(−f) is bounded. Otherwise a search for the mode may end in a spike."""
        return True

    def is_in_spike(self, position: Float[Any, " d"]) -> bool:
        """Whether a search for the mode has ended in a spike, where f has no lower bound."""
        return False

    def scale_mixtures(self) -> list[tuple[np.ndarray, ScaleMixturePrior]]:
        """Parameters that share a scale which is integrated out: their places and their prior."""
        return []

    @property
    def bounded_curvature(self) -> bool:
        """Whether `row_lipschitz` is known."""
        return False

    def regression(self) -> Any:
        """The `AbstractRegression` of the rows; None if they are no regression."""
        return None

    def remainder_bound(self, order: int) -> bool | None:
        """What bounds the rows' Taylor remainders of this order (`remainder_sizes`).

        True for a bound everywhere, False for one within any distance, None for no known bound.
        """
        return None

    def log_prior_integral(self) -> float | None:
        """log ∫ exp(−f₀), the constant that f₀ leaves out; None if it is not known."""
        return None

    def sample_prior(
        self, random: np.random.Generator, n_draws: int
    ) -> Float[np.ndarray, "n d"] | None:
        """Positions drawn from the prior; None if it is not known how."""
        return None

    def with_tempered_prior(self, power: float) -> AbstractModel | None:
        """The model with its prior to this power; None if the prior is no part of its own."""
        return None

    def check_gradients(self, n_rows: int, inflation: float) -> None:
        """Raise `InvalidInput`, with the method to use, if rows have no gradients.

        `inflation` is the relative error of variances that the user allows.
        """

    @property
    def dim(self) -> int:
        """d, the number of parameters."""
        return self.init.shape[0]

    @property
    def dtype(self) -> Any:
        """The precision of positions."""
        return self.init.dtype

    def width(self, rows: AbstractRows) -> int:
        """Floats that a pass needs per row: the larger of its data and its gradient."""
        return max(self.dim, rows.floats_per_row)

    def as_matrix(self, block: RowBlock) -> RowBlock:
        """The same rows on the host without codes, which are slower where chains are many."""
        return block

    def adds_pieces(self, block: RowBlock) -> bool:
        """Whether `block_hessian` itself sums over pieces of a block where that is needed."""
        return False

    @property
    def row_cost(self) -> int:
        """Likelihoods that are computed for the potential of one row."""
        return 1

    def step_share(self, step: Float[np.ndarray, " d"]) -> float:
        """The share of a Newton step that a search may take."""
        return 1.0

    def refined(self) -> AbstractModel | None:
        """The model with more accurate integrals; None if it has none, or exact ones."""
        return None

    # Sums over all rows.

    def potential_and_gradient(self, position: Float[Any, " d"], rows: AbstractRows) -> Sum:
        """(f(θ), ∇f(θ)) in one pass over all rows. XLA drops the one not used."""
        return rows.reduce(
            block_potential_and_gradient, self, position, width=self.width(rows), finish=add_prior
        )

    def full_hessian(self, position: Float[Any, " d"], rows: AbstractRows) -> Sum:
        """∇²f(θ) in one pass over all rows."""
        return rows.reduce(
            block_hessian_of, self, position, width=self.width(rows), finish=add_prior_hessian
        )

    # Derivatives.

    def prior_gradient(self, position: Vector) -> Vector:
        """∇f₀(θ)."""
        return jax.grad(self.prior_potential)(position)

    def row_potential(self, position: Vector, row: PyTree[Array]) -> Scalar:
        """f_i(θ) of one row."""
        return self.row_potentials(position, jax.tree.map(lambda entry: entry[None], row))[0]

    def row_gradients(self, position: Vector, block: RowBlock) -> Compact:
        """∇f_i(θ), compact."""
        return jax.vmap(jax.grad(self.row_potential), in_axes=(None, 0))(position, block)

    def remainders(self, order: int, position: Vector, centre: Vector, block: RowBlock) -> Compact:
        """∇f_i(θ) minus the first `order` ≤ 2 terms of its Taylor series at `centre`, compact."""
        gradients = self.row_gradients(position, block)
        if order == 0:
            return gradients
        if order == 1:
            return gradients - self.row_gradients(centre, block)
        at_centre, change = jax.jvp(
            lambda at: self.row_gradients(at, block), (centre,), (position - centre,)
        )
        return gradients - (at_centre + change)

    def sum_remainders(self, order: int, position: Vector, centre: Vector, batch: Batch) -> Vector:
        """Σ w_i r_i over a batch, with r_i the `remainders`."""
        # Differentiating the sum is cheaper than summing row gradients, which needs n×d numbers.
        gradient = jax.grad(lambda at: dot(batch.weights, self.row_potentials(at, batch.rows)))
        if order == 0:
            return gradient(position)
        if order == 1:
            return gradient(position) - gradient(centre)
        at_centre, change = jax.jvp(gradient, (centre,), (position - centre,))
        return gradient(position) - at_centre - change

    def potentials_and_gradient(
        self, position: Vector, batch: Batch
    ) -> tuple[Float[Array, " p"], Vector]:
        """Sums of f_i over pieces of a batch, and Σ ∇f_i; rows of weight 0 are left out."""
        gradient = self.sum_remainders(0, position, position, batch)
        potentials = self.row_potentials(position, batch.rows)
        return sums_of_pieces(jnp.where(batch.weights > 0, potentials, 0)), gradient

    def gaussian_mean_square_remainders(
        self,
        order: int,
        centre: Vector,
        spread: AbstractLinearMap,
        width: Scalar,
        metric: AbstractLinearMap,
        block: RowBlock,
    ) -> PerRow:
        """The mean of ‖Cᵀr_i(θ)‖² over θ = centre + width · Fξ, ξ ~ N(0, I).

        r_i is the `remainders`, C the `metric` and F the `spread`.
        """
        shape = _N_POSITIONS, spread.n_columns(len(centre))
        normal = standard_normal(new_key(1), shape, centre.dtype)
        positions = centre + width * spread.push(normal)

        def add_position(total: PerRow, probe: tuple[Array, Array]) -> tuple[PerRow, None]:
            position, key = probe
            shape = _N_DIRECTIONS, metric.n_columns(len(position))
            directions = metric.push(standard_normal(key, shape, position.dtype))
            remainders = self.remainders(order, position, centre, block)
            squares = self.along(remainders, directions, block) ** 2
            return total + jnp.mean(squares, axis=0), None

        keys = jax.random.split(new_key(0), len(positions))
        empty = jnp.zeros(jax.tree.leaves(block)[0].shape[0], positions.dtype)
        total, _ = lax.scan(add_position, empty, (positions, keys))
        return total / len(positions)

    def combine(self, compact: Compact, block: RowBlock, weights: PerRow) -> Vector:
        """Σ w_i ∇f_i from compact gradients."""
        return dot(weights, compact)

    def sum_of_squares(self, compact: Compact, block: RowBlock, weights: PerRow) -> Vector:
        """Σ w_i (∂_j f_i)² for every parameter j, from compact gradients."""
        return jnp.sum(weights[:, None] * self.expand(compact, block) ** 2, axis=0)

    def expand(self, compact: Compact, block: RowBlock) -> Float[Array, "n d"]:
        """∇f_i from compact gradients."""
        return compact

    def norms(self, compact: Compact, block: RowBlock) -> PerRow:
        """‖∇f_i‖ from compact gradients."""
        return jnp.linalg.norm(compact, axis=1)

    def along(self, compact: Compact, directions: Moves, block: RowBlock) -> Float[Array, "k n"]:
        """vᵀ∇f_i for some directions v, from compact gradients."""
        return dot(compact, directions.T).T

    def block_hessian(self, position: Vector, block: RowBlock, weights: PerRow) -> Matrix:
        """Σ w_i ∇²f_i(θ) over these rows."""
        gradient = jax.grad(lambda at: dot(weights, self.row_potentials(at, block)))
        return _jacobian(gradient, position)

    def hessian_products(self, position: Vector, directions: Moves, batch: Batch) -> Moves:
        """Σ w_i ∇²f_i(θ) v for some directions v."""

        def product(direction: Vector) -> Vector:
            def gradient(at: Vector) -> Vector:
                return self.sum_remainders(0, at, at, batch)

            return jax.jvp(gradient, (position,), (direction,))[1]

        return lax.map(product, directions)

    def effect_terms(self) -> tuple[EffectTerm, ...]:
        """Group effects that lie in a position beside the logs of their sds."""
        return ()

    def effect_hessians(self, position: Vector, batch: Batch) -> Float[Array, " b"]:
        """The blocks of Σ w_i ∇²f_i(θ) of each group, (G, r, r) flat, term after term."""
        return jnp.zeros(0, self.dtype)

    def curvature_norms(
        self, position: Vector, factor: Float[Array, "d k"], block: RowBlock
    ) -> PerRow:
        """‖∇²f_i(θ) C‖_F = √tr(H_i Σ H_iᵀ) for Σ = C Cᵀ."""

        # H_i c is a directional derivative for each column c of C, so no row needs a d×d matrix.
        def add_column(total: PerRow, column: Vector) -> tuple[PerRow, None]:
            _, product = jax.jvp(lambda at: self.row_gradients(at, block), (position,), (column,))
            return total + jnp.sum(product**2, axis=1), None

        n_rows = jax.tree.leaves(block)[0].shape[0]
        total, _ = lax.scan(add_column, jnp.zeros(n_rows, self.dtype), factor.T)
        return jnp.sqrt(total)

    def row_lipschitz(self, block: RowBlock) -> PerRow:
        """L_i with ‖∇f_i(θ) − ∇f_i(θ')‖ ≤ L_i ‖θ − θ'‖ (putcha-2023, Assumption 1)."""
        rule = "know its Lipschitz constants for this method"
        raise InvalidInput("posterior", rule, "none", "Pass Posterior(..., lipschitz=L).")

    # Taylor remainders R_i of the potentials, for models with a `remainder_bound`.

    def remainder_values(
        self, order: int, centre: Vector, moves: Moves, block: RowBlock
    ) -> Float[Array, "k n"]:
        """R_i(θ̂ + move): f_i less its expansion of this order at the centre θ̂."""
        raise NotImplementedError(type(self).__name__)

    def remainder_sizes(
        self,
        order: int,
        centre: Vector,
        metric: AbstractLinearMap,
        radius: Scalar | None,
        block: RowBlock,
    ) -> PerRow:
        """sup |Dᵏ⁺¹f_i[Cu, …, Cu]| with ‖u‖ ≤ 1 and k = `order`, at θ̂ + Cv for all ‖v‖ ≤ `radius`.

        With radius None the supremum is over all positions.
        """
        raise NotImplementedError(type(self).__name__)

    def remainder_width(self, rows: AbstractRows) -> int:
        """Floats that a pass for `remainder_sizes` needs per row."""
        return self.width(rows)

    # Series of order 3 at a centre: which rows they describe, and what they leave out.

    def series_sizes(
        self, centre: Vector, metric: AbstractLinearMap, wide: Moves, block: RowBlock
    ) -> tuple[PerRow, PerRow, PerRow]:
        """What the series of each row leaves out, its term of order 3, and f_i, in absolute values.

        The largest values at `FAR_SDS` sds of the row along its own gradient and at the `wide`
        moves; C is the `metric`. A remainder below its rounding error is zero.
        """

        def of_row(row: PyTree[Array]) -> tuple[Array, Array, Array]:
            def at(move: Vector) -> tuple[Array, Array, Array]:
                def potential(t: Scalar) -> Scalar:
                    return self.row_potential(centre + t * move, row)

                terms = _along(potential, self.dtype)
                parts: tuple[Scalar, ...]
                if self.errors_add_up:
                    parts = (_change(potential, self.dtype), *terms[1:])
                else:
                    parts = (self.row_potential(centre + move, row), *terms)
                rest = jnp.abs(parts[0] - sum(parts[1:]))
                rounding = 16 * jnp.finfo(self.dtype).eps * sum(map(jnp.abs, parts))
                rest = jnp.where(jnp.isfinite(rest), jnp.maximum(rest - rounding, 0), jnp.inf)
                return rest, jnp.abs(terms[3]), jnp.abs(terms[0])

            pulled = metric.pull(jax.grad(self.row_potential)(centre, row))
            unit = pulled / jnp.maximum(jnp.linalg.norm(pulled), jnp.finfo(self.dtype).tiny)
            own = FAR_SDS * metric.push(unit)
            rest, third, size = lax.map(at, jnp.concatenate([jnp.stack([own, -own]), wide]))
            return jnp.max(rest), jnp.max(third), size[0]

        return jax.vmap(of_row)(block)

    def third_derivatives(
        self, centre: Vector, metric: AbstractLinearMap, batch: Batch
    ) -> Float[Array, "d dd"]:
        """Σ w_i D³f_i[C·, Ce_j, Ce_k] over a batch of 2ⁿ rows, for all pairs (j, k)."""
        zero = jnp.zeros(metric.n_columns(self.dim), self.dtype)

        def total(u: Vector) -> Scalar:
            return dot(batch.weights, self.row_potentials(centre + metric.push(u), batch.rows))

        def of_unit(unit: Vector) -> Matrix:
            return _jacobian(lambda u: jax.jvp(jax.grad(total), (u,), (unit,))[1], zero)

        return lax.map(of_unit, jnp.eye(len(zero), dtype=self.dtype)).reshape(len(zero), -1)

    @property
    def exact_changes(self) -> bool:
        """Whether `sum_of_changes` has no cancellation."""
        return False

    @property
    def errors_add_up(self) -> bool:
        """Whether many rows round alike, as terms in parameters that all rows share do."""
        return False

    def sum_of_changes(self, centre: Vector, moves: Moves, batch: Batch) -> Float[Array, " k"]:
        """Σ w_i [f_i(θ̂ + move) − f_i(θ̂)] over a batch, for some moves from a centre θ̂."""
        at_centre = self.row_potentials(centre, batch.rows)

        def of_move(move: Vector) -> Scalar:
            return dot(batch.weights, self.row_potentials(centre + move, batch.rows) - at_centre)

        return lax.map(of_move, moves)

    def sum_along(self, centre: Vector, moves: Moves, batch: Batch) -> Float[Array, " k"]:
        """The same as integrals of ∇f_i · move, whose rounding errors are in proportion to them."""

        def of_move(move: Vector) -> Scalar:
            def total(t: Scalar) -> Scalar:
                return dot(batch.weights, self.row_potentials(centre + t * move, batch.rows))

            return _change(total, self.dtype)

        return lax.map(of_move, moves)

    def sum_of_remainders(
        self, centre: Vector, moves: Moves, batch: Batch, accurate: bool
    ) -> Float[Array, " k"]:
        """Σ w_i R_i(θ̂ + move) over a batch: changes less their terms of order 1 and 2.

        `accurate` asks for sums without cancellation, if the model has them.
        """
        gradient = self.sum_remainders(0, centre, centre, batch)
        hessian = self.block_hessian(centre, batch.rows, batch.weights)
        known = dot(moves, gradient) + jnp.sum(dot(moves, hessian) * moves, axis=1) / 2
        return self.sum_of_changes(centre, moves, batch) - known

    def remainders_and_gradient(
        self, centre: Vector, move: Vector, batch: Batch, accurate: bool
    ) -> tuple[Scalar, Vector]:
        """Σ w_i R_i(θ̂ + move) over a batch, and its gradient."""

        # `sum_of_remainders` has the whole Hessian, of which one move needs a product.
        def gradient(at: Vector) -> Vector:
            return self.sum_remainders(0, at, at, batch)

        at_centre, change = jax.jvp(gradient, (centre,), (move,))
        integrated = accurate and not self.exact_changes
        changes = self.sum_along if integrated else self.sum_of_changes
        value = changes(centre, move[None], batch)[0] - dot(move, at_centre + change / 2)
        return value, gradient(centre + move) - at_centre - change


MOST_DENSE = 2_000
"""Parameters up to which there are matrices of them, and gradients of single rows."""
FAR_SDS = 5.0
"""Where a series is compared with its row. At two sds, chains found the tails of the cubic."""


def _jacobian(function: Callable[[Vector], Vector], at: Vector) -> Matrix:
    """The derivatives of a gradient, in one direction after the other.

    In all directions at once, as by `jax.hessian`, they took twice as long with 60 parameters.
    """
    _, along = jax.linearize(function, at)
    return lax.map(along, jnp.eye(len(at), dtype=at.dtype))


def _change(function: Callable[[Scalar], Scalar], dtype: Any) -> Scalar:
    """The value at 1 less that at 0 as the integral of the slope, which nearly cancels nothing.

    Gauss's rule is right to single precision where the function has no structure within 1 or so.
    """
    nodes, weights = np.polynomial.legendre.leggauss(GAUSS_NODES)

    def slope(t: Scalar) -> Scalar:
        return jax.jvp(function, (t,), (jnp.ones_like(t),))[1]

    slopes = lax.map(slope, jnp.asarray((1 + nodes) / 2, dtype))
    return dot(jnp.asarray(weights / 2, dtype), slopes)


def _along(
    function: Callable[[Scalar], Scalar], dtype: Any
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """The terms of order 0 to 3 of the series of a function at 0, evaluated at 1."""

    # The derivative of order 3 comes with the others, so the function is traced once.
    def derivatives(order: int, t: Scalar) -> tuple[Scalar, ...]:
        if order == 0:
            return (function(t),)
        lower = functools.partial(derivatives, order - 1)
        values, slopes = jax.jvp(lower, (t,), (jnp.ones_like(t),))
        return *values, slopes[-1]

    value, first, second, third = derivatives(3, jnp.zeros((), dtype))
    return value, first, second / 2, third / 6


def rounded_sum(total: Sum, *args: Any) -> Any:
    """The sum of a pass in the precision of its terms; `finish` of `AbstractRows.reduce`."""
    return total.rounded()


def sums_of_pieces(values: Float[Array, "n ..."]) -> Float[Array, "p ..."]:
    """Plain sums over a few rows each, which `split_sum` adds without rounding errors.

    In float32, a plain sum of 128 potentials of 20,000 is wrong by 0.1. With 4,000 such rows NUTS
    rejected a third of its proposals at any step size. Sums over eight rows take no longer.
    """
    size = _POTENTIAL_ROWS
    padding = [(0, -len(values) % size), *[(0, 0)] * (values.ndim - 1)]
    return jnp.sum(jnp.pad(values, padding).reshape(-1, size, *values.shape[1:]), axis=1)


def block_potential_and_gradient(
    block: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Vector
) -> tuple[Scalar, Scalar, Vector]:
    """Σ f_i as (high, low), and Σ ∇f_i, over a block of rows."""
    batch = Batch(block, counted.astype(model.dtype))
    pieces, gradient = model.potentials_and_gradient(position, batch)
    return *split_sum(pieces), gradient


def add_prior(total: Sum, model: AbstractModel, position: Vector) -> Sum:
    """(f, ∇f) from a sum of `block_potential_and_gradient`."""
    (high, remainder, gradient), (low, remainder_low, gradient_low) = total.high, total.low
    low = low + (remainder + remainder_low) + model.prior_potential(position)
    return Sum((high, gradient), (low, gradient_low + model.prior_gradient(position)))


def block_hessian_of(
    block: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Vector
) -> Matrix:
    """Σ ∇²f_i over a block of rows, summed over pieces of the block.

    One matrix product over 8,192 rows in float32 has relative errors of up to 1e-4. A column with
    its mean 200 sds from zero, such as a year, then seems collinear with the intercept.
    """
    weights = counted.astype(model.dtype)
    n_rows = weights.shape[0]
    n_pieces = n_rows // PIECE_ROWS
    if n_pieces <= 1 or model.adds_pieces(block):
        return model.block_hessian(position, block, weights)
    in_pieces = n_pieces * PIECE_ROWS
    pieces = jax.tree.map(
        lambda column: column[:in_pieces].reshape(n_pieces, PIECE_ROWS, *column.shape[1:]),
        (block, weights),
    )
    total = jnp.sum(jax.vmap(lambda piece: model.block_hessian(position, *piece))(pieces), axis=0)
    if in_pieces < n_rows:
        rest = jax.tree.map(lambda column: column[in_pieces:], (block, weights))
        total = total + model.block_hessian(position, *rest)
    return total


def add_prior_hessian(total: Sum, model: AbstractModel, position: Vector) -> Sum:
    """∇²f from a sum of `block_hessian_of`."""
    return Sum(total.high, total.low + jax.hessian(model.prior_potential)(position))


# Models given by two log densities. Derivatives come from automatic differentiation.

_CHECKED_ROWS = 3


class DensityModel(AbstractModel):
    """A model given by a log-likelihood and a log prior of the user's parameters."""

    cubic_cost = 20

    log_likelihood: Callable[[PyTree, PyTree], Any]
    """log p(x_i | θ) of one row or, if `batched`, of each row of a block."""
    log_prior: Callable[[PyTree], Any]
    init: Vector
    layout: Layout = eqx.field(static=True)
    batched: bool = eqx.field(static=True, default=False)

    @property
    def errors_add_up(self) -> bool:
        return True

    def prior_potential(self, position: Vector) -> Scalar:
        # A flat prior may return the Python number 0.0.
        return jnp.negative(self.log_prior(self.layout.unravel(position)))

    def row_potentials(self, position: Vector, block: RowBlock) -> PerRow:
        params = self.layout.unravel(position)
        if self.batched:
            return -self.log_likelihood(params, block)
        return -jax.vmap(self.log_likelihood, in_axes=(None, 0))(params, block)

    def row_potential(self, position: Vector, row: PyTree[Array]) -> Scalar:
        if self.batched:
            return super().row_potential(position, row)
        return -self.log_likelihood(self.layout.unravel(position), row)

    def log_prior_integral(self) -> float:
        return 0.0  # the user's log densities count as they are

    def with_tempered_prior(self, power: float) -> DensityModel:
        return dataclasses.replace(self, log_prior=TemperedLogPrior(self.log_prior, power))


class TemperedLogPrior(eqx.Module):
    """power · log p."""

    log_prior: Callable[[PyTree], Any]
    power: float

    def __call__(self, params: PyTree) -> Any:
        return self.power * self.log_prior(params)


def check_scalar(name: str, cure: str, function: Callable[..., Any], *args: Any) -> None:
    """Raise unless `function(*args)` returns a floating-point scalar. `args` are shapes."""
    _check_result(name, (), "return a floating-point scalar", cure, function, *args)


def check_per_row(
    name: str, function: Callable[..., Any], params: PyTree, row_shapes: PyTree
) -> None:
    """Raise unless `function(params, rows)` returns one float per row. The others are shapes."""
    some_rows = jax.tree.map(
        lambda row: jax.ShapeDtypeStruct((_CHECKED_ROWS, *row.shape), row.dtype), row_shapes
    )
    rule = "return one floating-point number per row"
    _check_result(name, (_CHECKED_ROWS,), rule, "", function, params, some_rows)


def _check_result(
    name: str,
    shape: tuple[int, ...],
    rule: str,
    cure: str,
    function: Callable[..., Any],
    *args: Any,
) -> None:
    result = jax.eval_shape(function, *args)
    if getattr(result, "shape", None) != shape or not jnp.issubdtype(result.dtype, jnp.floating):
        raise InvalidInput(name, rule, result, cure)
