"""Regressions: models whose rows depend on θ through linear predictors, with any prior.

    f_i(θ) = w_i f(z_i; y_i),   z_i = (B₁·x_i + o_i, B₂·x_i, …, B_K·x_i, s₁, …, s_E),   θ = (B, s)

A likelihood defines f. `LinearPredictor` takes any: derivatives with respect to z come from
automatic differentiation in K + E dimensions, the rest is linear algebra. A gradient costs O(cK)
per row with c columns, and no row needs a d×d matrix. The compact gradient of a row is w_i ∂f/∂z.

`GeneralisedLinear` takes elementwise likelihoods, with one predictor z_i = x_iᵀθ + o_i:

    ∇f_i = w_i f'(z_i) x_i,     ∇²f_i = w_i f''(z_i) x_i x_iᵀ

The compact gradient is the scalar w_i f'(z_i). With w_i = 1, ‖∇f_i‖ = |f'|‖x_i‖,
tr(H_i Σ H_iᵀ) = f''² ‖x_i‖² x_iᵀΣx_i and L_i = sup f'' · ‖x_i‖² (putcha-2023, appendix C). For
Gaussian θ the predictor z_i is Gaussian, so means over θ of a function of one row are
one-dimensional integrals. Gauss–Hermite quadrature computes them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from .._core.arrays import AbstractLinearMap, Layout, Matrix, Scalar, Vector, dot
from .._core.errors import InvalidInput
from .._rows.access import AbstractRows, PerRow
from .._rows.law import Batch
from .design import CodedColumns, Columns, LevelValues, Observations, RegressionRows, columns_of
from .likelihood import AbstractLikelihood
from .model import FAR_SDS, MOST_DENSE, AbstractModel, Compact, Moves, sums_of_pieces
from .priors import AbstractPrior, ScaleMixturePrior, scale_mixtures


def weighted(block: RegressionRows, values: Any) -> Any:
    """Values per row, (n, ...), times the weights of the rows."""
    if block.weight is None:
        return values
    return block.weight.reshape(-1, *[1] * (values.ndim - 1)) * values


class AbstractRegression(AbstractModel):
    """What regressions have in common. `tallmc.models` builds their posteriors."""

    init: Vector
    layout: Layout = eqx.field(static=True)
    likelihood: AbstractLikelihood
    prior: AbstractPrior
    """The prior of all of a position."""
    level_values: LevelValues = eqx.field(default=None, kw_only=True)
    """The values of columns that rows hold as codes."""

    def columns(self, block: RegressionRows) -> Columns:
        """The columns of the design matrix."""
        return columns_of(block, self.level_values)

    def as_matrix(self, block: RegressionRows) -> RegressionRows:
        if isinstance(block, Observations) and isinstance(block.x, CodedColumns):
            return block._replace(x=block.x.matrix(self.level_values))
        return block

    def predictors(self, position: Vector, block: RegressionRows) -> Float[Array, "n ..."]:
        """z_i of every row."""
        raise NotImplementedError

    @property
    def n_columns(self) -> int:
        """The number of columns of the design matrix."""
        return (self.dim - self.likelihood.n_shared) // self.likelihood.n_predictors

    @property
    def row_cost(self) -> int:
        return self.likelihood.row_cost

    @property
    def exact_changes(self) -> bool:
        return self.likelihood.exact_changes

    @property
    def log_concave(self) -> bool:
        return self.likelihood.log_concave and self.prior.log_concave

    def scale_mixtures(self) -> list[tuple[np.ndarray, ScaleMixturePrior]]:
        return list(scale_mixtures(self.prior, np.arange(self.dim)))

    @property
    def bounded_curvature(self) -> bool:
        return self.likelihood.largest_curvature() is not None

    def regression(self) -> AbstractRegression:
        return self

    def remainder_bound(self, order: int) -> bool | None:
        return self.likelihood.bounded(order + 1)

    def with_tempered_prior(self, power: float) -> AbstractRegression:
        return dataclasses.replace(self, prior=self.prior.tempered(power))

    def log_prior_integral(self) -> float | None:
        return self.prior.log_integral(self.dim)

    def sample_prior(
        self, random: np.random.Generator, n_draws: int
    ) -> Float[np.ndarray, "n d"] | None:
        return self.prior.sample(random, n_draws, self.dim)

    def prior_potential(self, position: Vector) -> Scalar:
        return self.prior.potential(position)

    def sum_remainders(self, order: int, position: Vector, centre: Vector, batch: Batch) -> Vector:
        remainders = self.remainders(order, position, centre, batch.rows)
        return self.combine(remainders, batch.rows, batch.weights)

    def row_lipschitz(self, block: RegressionRows) -> PerRow:
        largest = self.likelihood.largest_curvature()
        if largest is None:
            found = f"the {type(self.likelihood).__name__} family, whose curvature has no bound"
            cure = "Use weights='gradient' or 'curvature', and a fixed size."
            raise InvalidInput("posterior", "have Lipschitz gradients for this method", found, cure)
        squares = self.columns(block).norms() ** 2
        if self.likelihood.n_shared:
            squares = jnp.maximum(squares, 1.0)
        return weighted(block, jnp.asarray(largest, self.dtype) * squares)


def beside(values: PerRow, others: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """Values per row, to be combined with others that may have several columns."""
    return values.reshape(-1, *[1] * (others.ndim - 1))


def in_columns(
    sums: Callable[..., PyTree[Float[Array, "e k"]]], position: Vector, *args: Any
) -> PyTree[Float[Array, " e"]]:
    """`sums` at one position; mapped over many, it gets them as the columns of a matrix.

    A gather then reads the numbers of all chains at one place. With 32 chains on a CPU, the gather
    alone takes an eighth of the time of one gather per chain.
    """
    arrays, others = eqx.partition(args, eqx.is_array)

    def at_one(position: Vector, arrays: Any) -> PyTree[Float[Array, " e"]]:
        found = sums(position[:, None], *eqx.combine(arrays, others))
        return jax.tree.map(lambda of: of[:, 0], found)

    mapped = jax.custom_batching.custom_vmap(at_one)

    @mapped.def_vmap
    def rule(size: int, batched: Any, position: Any, arrays: Any) -> tuple[Any, Any]:
        if any(jax.tree.leaves(batched[1])):
            axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, batched)
            found = jax.vmap(at_one, tuple(axes), axis_size=size)(position, arrays)
        else:
            found = sums(position.T, *eqx.combine(arrays, others))
            found = jax.tree.map(lambda of: of.T, found)
        return found, jax.tree.map(lambda _: True, found)

    return mapped(position, arrays)


# Taylor remainders without cancellation.
#
#     R = h(1) − Σ_{j≤k} h⁽ʲ⁾(0)/j! = 1/k! ∫₀¹ (1 − s)ᵏ h⁽ᵏ⁺¹⁾(s) ds
#
# h(s) is a row's potential on the way from the anchor to a position. In single precision, the
# difference on the left loses all digits: near the anchor R is of the order of 10⁻⁷ and h of 1. The
# integral keeps them. Gauss and Jacobi's rule with the weight (1 − s)ᵏ computes it to single
# precision as long as the predictor moves by less than 1. Beyond that, R is large enough for the
# difference.

_NODES = 5
_FAR = 1.0
"""Moves of the predictor beyond which the difference is accurate enough."""


def remainder(
    order: int,
    derivative: Callable[[float], Float[Array, "*k n"]],
    difference: Float[Array, "*k n"],
    distance: Float[Array, "*k n"],
) -> Float[Array, "*k n"]:
    """R of this order, k.

    `derivative` is h⁽ᵏ⁺¹⁾ as a function of s. `difference` is R as a difference, which is used if
    the `distance` that the predictors move is large.
    """
    return jnp.where(distance < _FAR, integral(order, derivative), difference)


def integral(
    order: int, derivative: Callable[[float], Float[Array, "*k n"]]
) -> Float[Array, "*k n"]:
    """R by the rule."""
    from scipy.special import roots_jacobi  # a slow import

    found = roots_jacobi(_NODES, order, 0)
    # Nodes and weights on [0, 1]. Python's numbers leave arrays in their precision.
    nodes = ((found[0] + 1) / 2).tolist()
    weights = (found[1] / (2.0 ** (order + 1) * math.factorial(order))).tolist()
    total = weights[0] * derivative(nodes[0])
    for node, weight in zip(nodes[1:], weights[1:], strict=True):
        total += weight * derivative(node)
    return total


# A fused sum over rows by number on a GPU: it reads each row once and writes only the sum.
#
# XLA gathers the rows into an array and reads the array twice, for x_iᵀθ and for Σ c_i x_i. Here
# one Triton program per chain does both, a few rows at a time. It reads a copy of the data in which
# each row and its response lie side by side, padded with zeros to a power of two columns. Other
# devices have no such copy, and rows are gathered as usual. The results agree up to rounding.

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
    padding = (0, 0), (0, columns - x.shape[1] - 1)
    return jnp.pad(jnp.concatenate([x, y[:, None]], axis=1), padding)


def weighted_row_sum(
    compact: Callable[[Sequence[PerRow], PerRow], PerRow],
    packed: Float[Array, "N c"],
    indices: Int[Array, " n"],
    weights: PerRow,
    positions: Float[Array, "k d"],
) -> Vector:
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


_QUADRATURE_NODES = 24
_CUBIC_PART = 512
_EVERYWHERE = 1e4
"""A bounded derivative is constant, to rounding, beyond predictors of ±10⁴."""
_ROUNDING = 1 + 1e-5
_PREDICTOR_ROUNDING = 1 + 1e-4


class GeneralisedLinear(AbstractRegression):
    """A regression with an elementwise likelihood of one predictor."""

    one_predictor = True

    def predictors(self, position: Vector, block: RegressionRows) -> PerRow:
        z = self.columns(block) @ position
        return z if block.offset is None else z + block.offset

    def row_potentials(self, position: Vector, block: RegressionRows) -> PerRow:
        return weighted(block, self.likelihood.potential(self.predictors(position, block), block.y))

    def row_gradients(self, position: Vector, block: RegressionRows) -> PerRow:
        return weighted(block, self.likelihood.slope(self.predictors(position, block), block.y))

    def remainders(
        self, order: int, position: Vector, centre: Vector, block: RegressionRows
    ) -> PerRow:
        if order == 0:
            return self.row_gradients(position, block)
        remainders = self._remainders(order, self.predictors(centre, block), block.y)
        return weighted(block, remainders(self.columns(block) @ (position - centre)))

    def gaussian_mean_square_remainders(
        self,
        order: int,
        centre: Vector,
        spread: AbstractLinearMap,
        width: Scalar,
        metric: AbstractLinearMap,
        block: RegressionRows,
    ) -> PerRow:
        z = self.predictors(centre, block)
        sd = width * jnp.linalg.norm(self.columns(block).pulled(spread), axis=1)
        remainders = self._remainders(order, z, block.y)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_NODES)

        def add_node(total: PerRow, node: tuple[Array, Array]) -> tuple[PerRow, None]:
            at, weight = node
            return total + weight * remainders(at * sd) ** 2, None

        shares = jnp.asarray(weights / weights.sum(), self.dtype)
        quadrature = jnp.asarray(nodes, self.dtype), shares
        mean_square, _ = lax.scan(add_node, jnp.zeros_like(z), quadrature)
        squares = weighted(block, weighted(block, mean_square))
        return squares * jnp.sum(self.columns(block).pulled(metric) ** 2, axis=1)

    def _remainders(self, order: int, z: PerRow, y: PerRow) -> Callable[[Array], PerRow]:
        """f'(z + v) minus the first `order` terms of its Taylor series, as a function of v."""
        slope = self.likelihood.slope(z, y) if order >= 1 else 0.0
        curvature = self.likelihood.curvature(z, y) if order >= 2 else 0.0
        return lambda move: self.likelihood.slope(z + move, y) - slope - curvature * move

    def sum_remainders(self, order: int, position: Vector, centre: Vector, batch: Batch) -> Vector:
        if self.columns(batch.rows).factors:

            def sums(
                positions: Float[Array, "d k"],
                model: GeneralisedLinear,
                centre: Vector,
                batch: Batch,
            ) -> Float[Array, "d k"]:
                block = batch.rows
                x, y = model.columns(block), block.y[:, None]
                z = jnp.zeros_like(y) if block.offset is None else block.offset[:, None]
                if order:
                    z = model.predictors(centre, block)[:, None]
                along = x @ (positions - centre[:, None] if order else positions)
                found = weighted(block, model._remainders(order, z, y)(along))
                return x.sums(batch.weights[:, None] * found)

            return in_columns(sums, position, self, centre, batch)
        if batch.packed is None or batch.indices is None or batch.n_rows > _MAX_ROWS:
            return super().sum_remainders(order, position, centre, batch)

        def compact(z: Sequence[PerRow], y: PerRow) -> PerRow:
            return self._remainders(order, z[0], y)(z[1])

        vectors = jnp.stack([centre, position - centre])
        return weighted_row_sum(compact, batch.packed, batch.indices, batch.weights, vectors)

    def potentials_and_gradient(
        self, position: Vector, batch: Batch
    ) -> tuple[Float[Array, " p"], Vector]:
        if not self.columns(batch.rows).factors:
            return super().potentials_and_gradient(position, batch)

        def both(
            positions: Float[Array, "d k"], model: GeneralisedLinear, batch: Batch
        ) -> Float[Array, "e k"]:
            block, weights = batch.rows, batch.weights[:, None]
            x, y = model.columns(block), block.y[:, None]
            z = x @ positions
            z = z if block.offset is None else z + block.offset[:, None]
            slopes = weighted(block, model.likelihood.slope(z, y))
            potentials = weighted(block, model.likelihood.potential(z, y))
            pieces = sums_of_pieces(jnp.where(weights > 0, potentials, 0))
            return jnp.concatenate([x.sums(weights * slopes), pieces])

        found = in_columns(both, position, self, batch)
        return found[len(position) :], found[: len(position)]

    def combine(self, compact: PerRow, block: RegressionRows, weights: PerRow) -> Vector:
        return self.columns(block).sums(weights * compact)

    def width(self, rows: AbstractRows) -> int:
        # A row with codes is far shorter than its gradient.
        return rows.floats_per_row if self.dim > MOST_DENSE else super().width(rows)

    def sum_of_squares(self, compact: PerRow, block: RegressionRows, weights: PerRow) -> Vector:
        return self.columns(block).squared().sums(weights * compact**2)

    def expand(self, compact: PerRow, block: RegressionRows) -> Float[Array, "n d"]:
        return compact[:, None] * self.columns(block).matrix()

    def norms(self, compact: PerRow, block: RegressionRows) -> PerRow:
        return jnp.abs(compact) * self.columns(block).norms()

    def adds_pieces(self, block: RegressionRows) -> bool:
        return bool(self.columns(block).factors)

    def block_hessian(self, position: Vector, block: RegressionRows, weights: PerRow) -> Matrix:
        return self.columns(block).gram(weights * self._curvatures(position, block))

    def hessian_products(self, position: Vector, directions: Moves, batch: Batch) -> Moves:
        x, weights = self.columns(batch.rows), batch.weights
        curvatures = weights * self._curvatures(position, batch.rows)
        return x.sums(curvatures[:, None] * (x @ directions.T)).T

    def effect_hessians(self, position: Vector, batch: Batch) -> Float[Array, " b"]:
        curvatures = self._curvatures(position, batch.rows)
        return self.columns(batch.rows).gram_within_groups(batch.weights * curvatures)

    def curvature_norms(
        self, position: Vector, factor: Float[Array, "d k"], block: RegressionRows
    ) -> PerRow:
        x = self.columns(block)
        norms = jnp.abs(self._curvatures(position, block)) * x.norms()
        return norms * jnp.linalg.norm(x @ factor, axis=1)

    def remainder_values(
        self, order: int, centre: Vector, moves: Moves, block: RegressionRows
    ) -> Float[Array, "k n"]:
        along = (self.columns(block) @ moves.T).T
        return jax.vmap(self._remainder(order, centre, block))(along)

    def _remainder(
        self, order: int, centre: Vector, block: RegressionRows, accurate: bool = True
    ) -> Callable[[Float[Array, "n ..."]], Float[Array, "n ..."]]:
        """R_i as a function of t = x_iᵀ(θ − θ̂), for one θ or one per column."""
        likelihood, y = self.likelihood, block.y
        anchored = self.predictors(centre, block)
        terms = [
            likelihood.derivative(power, anchored, y) / math.factorial(power)
            for power in range(order + 1)
        ]
        # Without a barrier XLA computes them again for every move.
        terms, anchored = lax.optimization_barrier((terms, anchored))

        def of_move(t: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
            z, of_row, *series = (beside(of, t) for of in (anchored, y, *terms))
            expansion = sum(term * t**power for power, term in enumerate(series))
            found = likelihood.potential(z + t, of_row) - expansion
            if accurate:
                found = remainder(
                    order,
                    lambda s: (
                        likelihood.derivative(order + 1, z + s * t, of_row) * t ** (order + 1)
                    ),
                    found,
                    jnp.abs(t),
                )
            return weighted(block, found)

        return of_move

    def sum_of_remainders(
        self, centre: Vector, moves: Moves, batch: Batch, accurate: bool
    ) -> Float[Array, " k"]:
        return self._sums_of(centre, moves, batch, accurate)

    def sum_of_changes(self, centre: Vector, moves: Moves, batch: Batch) -> Float[Array, " k"]:
        return self._sums_of(centre, moves, batch, None)

    def _sums_of(
        self, centre: Vector, moves: Moves, batch: Batch, accurate: bool | None
    ) -> Float[Array, " k"]:
        """Σ w_i R_i of order 2 for each move; Σ w_i Δf_i if `accurate` is None."""

        def sums(
            moves: Float[Array, "d k"], model: GeneralisedLinear, centre: Vector, batch: Batch
        ) -> Float[Array, "1 k"]:
            x, block = model.columns(batch.rows), batch.rows
            along = x @ moves
            if accurate is None:
                z, y = (beside(of, along) for of in (model.predictors(centre, block), block.y))
                found = weighted(block, model.likelihood.change(z, y)(along))
            else:
                found = model._remainder(2, centre, block, accurate)(along)
            return dot(batch.weights[None], found)

        if len(moves) > 1:
            return sums(moves.T, self, centre, batch)[0]
        return in_columns(sums, moves[0], self, centre, batch)

    def remainders_and_gradient(
        self, centre: Vector, move: Vector, batch: Batch, accurate: bool
    ) -> tuple[Scalar, Vector]:
        def sums(
            moves: Float[Array, "d k"], model: GeneralisedLinear, centre: Vector, batch: Batch
        ) -> tuple[Float[Array, "1 k"], Float[Array, "d k"]]:
            block = batch.rows
            x, weights = model.columns(block), batch.weights[:, None]
            along, z = x @ moves, model.predictors(centre, block)[:, None]
            values = model._remainder(2, centre, block, accurate)(along)
            slopes = weighted(block, model._remainders(2, z, block.y[:, None])(along))
            return jnp.sum(weights * values, axis=0, keepdims=True), x.sums(weights * slopes)

        value, gradient = in_columns(sums, move, self, centre, batch)
        return value[0], gradient

    def series_sizes(
        self, centre: Vector, metric: AbstractLinearMap, wide: Moves, block: RegressionRows
    ) -> tuple[PerRow, PerRow, PerRow]:
        # A row depends on θ along its own direction only, so the wide moves show nothing more.
        z, sd = self.predictors(centre, block), self._sds(metric, block)
        t, rest = FAR_SDS * sd, self._remainder(3, centre, block)
        third = weighted(block, self.likelihood.derivative(3, z, block.y)) * t**3 / 6
        largest = jnp.maximum(jnp.abs(rest(t)), jnp.abs(rest(-t)))
        largest = jnp.where(jnp.isfinite(largest), largest, jnp.inf)
        return largest, jnp.abs(third), jnp.abs(self.row_potentials(centre, block))

    def remainder_sizes(
        self,
        order: int,
        centre: Vector,
        metric: AbstractLinearMap,
        radius: Scalar | None,
        block: RegressionRows,
    ) -> PerRow:
        # sup |f⁽ᵏ⁺¹⁾| · ‖w_i‖ᵏ⁺¹ with w_i = Cᵀx_i, over the interval ẑ_i ± ‖w_i‖r.
        size = self._sds(metric, block)
        anchored = self.predictors(centre, block)
        if radius is None:
            high = jnp.full_like(anchored, _EVERYWHERE)
            low = -high
        else:
            reach = _ROUNDING * size * radius
            low, high = anchored - reach, anchored + reach
        largest = self.likelihood.largest_derivative(order + 1, low, high, block.y)
        return weighted(block, _ROUNDING * largest * size ** (order + 1))

    def third_derivatives(
        self, centre: Vector, metric: AbstractLinearMap, batch: Batch
    ) -> Float[Array, "e ee"]:
        dim = metric.n_columns(self.dim)
        first, second = np.triu_indices(dim)  # each pair once
        place = np.zeros((dim, dim), int)
        place[first, second] = place[second, first] = np.arange(len(first))

        def add(total: Array, part: Batch) -> tuple[Array, None]:
            block = part.rows
            third = self.likelihood.derivative(3, self.predictors(centre, block), block.y)
            w = self.columns(block).pulled(metric).T
            weights = part.weights * weighted(block, third)
            return total + dot(w * weights, (w[first] * w[second]).T), None

        # In parts, because a row has d²/2 pairs.
        n_parts = max(1, batch.n_rows // _CUBIC_PART)
        size = batch.n_rows // n_parts
        parts = jax.tree.map(lambda of: of.reshape(n_parts, size, *of.shape[1:]), batch)
        total, _ = lax.scan(add, jnp.zeros((dim, len(first)), self.dtype), parts)
        return total[:, place.ravel()]

    def _sds(self, metric: AbstractLinearMap, block: RegressionRows) -> PerRow:
        """‖Cᵀx_i‖, the sd of a row's predictor."""
        pulled = (columns := self.columns(block)).pulled(metric)
        if not columns.factors:
            return jnp.linalg.norm(pulled, axis=1)
        # A product, because XLA would fuse a plain sum with the gathers of codes.
        return jnp.sqrt(dot(pulled**2, jnp.ones(pulled.shape[1], pulled.dtype)))

    def _curvatures(self, position: Vector, block: RegressionRows) -> PerRow:
        return weighted(block, self.likelihood.curvature(self.predictors(position, block), block.y))


class LinearPredictor(AbstractRegression):
    """A position holds the K coefficients of each column of x, then the shared parameters."""

    @property
    def errors_add_up(self) -> bool:
        return True

    def moves(self, move: Vector, block: RegressionRows) -> Float[Array, "n k"]:
        """The change of z_i of every row when the position changes by `move`."""
        split = move.shape[0] - self.likelihood.n_shared
        by_column = self.columns(block) @ move[:split].reshape(-1, self.likelihood.n_predictors)
        shared = jnp.broadcast_to(move[split:], (len(by_column), self.likelihood.n_shared))
        return jnp.concatenate([by_column, shared], axis=1)

    def predictors(self, position: Vector, block: RegressionRows) -> Float[Array, "n k"]:
        z = self.moves(position, block)
        return z if block.offset is None else z.at[:, 0].add(block.offset)

    def row_potentials(self, position: Vector, block: RegressionRows) -> PerRow:
        z = self.predictors(position, block)
        return weighted(block, jax.vmap(self.likelihood.potential)(z, block.y))

    def row_gradients(self, position: Vector, block: RegressionRows) -> Float[Array, "n k"]:
        return self._slopes(self.predictors(position, block), block)

    def remainders(
        self, order: int, position: Vector, centre: Vector, block: RegressionRows
    ) -> Float[Array, "n k"]:
        if order == 0:
            return self.row_gradients(position, block)
        move = self.moves(position - centre, block)
        moved = self._slopes(self.predictors(centre, block) + move, block)
        slopes, change = self._slopes_along(centre, move, block)
        return moved - slopes if order == 1 else moved - slopes - change

    def along(
        self, compact: Compact, directions: Moves, block: RegressionRows
    ) -> Float[Array, "k n"]:
        # The inner product of the compact gradient and the predictors of the direction.
        along = jax.vmap(lambda direction: self.moves(direction, block))(directions)
        return jnp.sum(along * compact, axis=2)

    def combine(self, compact: Compact, block: RegressionRows, weights: PerRow) -> Vector:
        k, summands = self.likelihood.n_predictors, weights[:, None] * compact
        by_column = self.columns(block).sums(summands[:, :k])
        return jnp.concatenate([by_column.ravel(), jnp.sum(summands[:, k:], axis=0)])

    def expand(self, compact: Float[Array, "n k"], block: RegressionRows) -> Float[Array, "n d"]:
        k = self.likelihood.n_predictors
        by_column = self.columns(block).matrix()[:, :, None] * compact[:, None, :k]
        return jnp.concatenate([by_column.reshape(len(compact), -1), compact[:, k:]], axis=1)

    def norms(self, compact: Float[Array, "n k"], block: RegressionRows) -> PerRow:
        k = self.likelihood.n_predictors
        of_columns = self.columns(block).norms() ** 2 * jnp.sum(compact[:, :k] ** 2, axis=1)
        return jnp.sqrt(of_columns + jnp.sum(compact[:, k:] ** 2, axis=1))

    def sum_of_changes(self, centre: Vector, moves: Moves, batch: Batch) -> Float[Array, " k"]:
        if not self.exact_changes:
            return super().sum_of_changes(centre, moves, batch)
        block = batch.rows
        change = self.likelihood.change(self.predictors(centre, block), block.y)

        def of_move(move: Vector) -> Scalar:
            return dot(batch.weights, weighted(block, change(self.moves(move, block))))

        return lax.map(of_move, moves)

    def block_hessian(self, position: Vector, block: RegressionRows, weights: PerRow) -> Matrix:
        def column(along: Vector) -> Vector:
            _, change = self._slopes_along(position, self.moves(along, block), block)
            return self.combine(change, block, weights)

        return lax.map(column, jnp.eye(self.dim, dtype=self.dtype))

    def effect_hessians(self, position: Vector, batch: Batch) -> Float[Array, " b"]:
        assert self.likelihood.n_predictors == 1, "group terms have one predictor"
        block = batch.rows
        hessian = jax.vmap(jax.hessian(self.likelihood.potential))
        each = hessian(self.predictors(position, block), block.y)[:, 0, 0]
        return self.columns(block).gram_within_groups(weighted(block, batch.weights * each))

    def curvature_norms(
        self, position: Vector, factor: Float[Array, "d c"], block: RegressionRows
    ) -> PerRow:
        def add_column(total: PerRow, along: Vector) -> tuple[PerRow, None]:
            _, change = self._slopes_along(position, self.moves(along, block), block)
            return total + self.norms(change, block) ** 2, None

        total, _ = lax.scan(add_column, jnp.zeros(len(block.y), self.dtype), factor.T)
        return jnp.sqrt(total)

    def remainder_values(
        self, order: int, centre: Vector, moves: Moves, block: RegressionRows
    ) -> Float[Array, "k n"]:
        assert order == 2, "the only order with a bound"
        # R_i is a function of Δz_i = J_i u.
        anchored = self.predictors(centre, block)

        def potential(z: Float[Array, "n k"]) -> PerRow:
            return jax.vmap(self.likelihood.potential)(z, block.y)

        def of_move(move: Vector) -> PerRow:
            along = self.moves(move, block)
            first = _derivative(potential, along)
            second = _derivative(first, along)
            third = _derivative(second, along)
            expansion = potential(anchored) + first(anchored) + second(anchored) / 2
            found = remainder(
                2,
                lambda s: third(anchored + s * along),
                potential(anchored + along) - expansion,
                jax.vmap(self.likelihood.distance)(anchored, along),
            )
            return weighted(block, found)

        return jax.vmap(of_move)(moves)

    def remainder_sizes(
        self,
        order: int,
        centre: Vector,
        metric: AbstractLinearMap,
        radius: Scalar | None,
        block: RegressionRows,
    ) -> PerRow:
        # The supremum over the box |Δz_k| ≤ ‖w_ik‖r, with the rows w_ik of J_i.
        def of_predictor(unit: Float[Array, " k"]) -> Float[Array, "n d"]:
            compact = jnp.broadcast_to(unit, (block.y.shape[0], len(unit)))
            return metric.pull(self.expand(compact, block))

        w = jax.vmap(of_predictor)(jnp.eye(self._n_compact, dtype=self.dtype))
        gram = jnp.einsum("knd,lnd->nkl", w, w, precision=lax.Precision.HIGHEST)
        sizes = jnp.sqrt(jnp.diagonal(gram, axis1=1, axis2=2))
        reach = jnp.full_like(sizes, jnp.inf)
        if radius is not None:
            reach = _PREDICTOR_ROUNDING * sizes * radius
        z = self.predictors(centre, block)
        found = jax.vmap(self.likelihood.largest_cubic)(z, reach, gram, block.y)
        return weighted(block, _PREDICTOR_ROUNDING * found)

    def remainder_width(self, rows: AbstractRows) -> int:
        # The rows of all J_i are the largest array.
        return max(self.width(rows), self._n_compact * self.dim)

    @property
    def _n_compact(self) -> int:
        return self.likelihood.n_predictors + self.likelihood.n_shared

    def _slopes(self, z: Float[Array, "n k"], block: RegressionRows) -> Float[Array, "n k"]:
        return weighted(block, jax.vmap(jax.grad(self.likelihood.potential))(z, block.y))

    def _slopes_along(
        self, position: Vector, move: Float[Array, "n k"], block: RegressionRows
    ) -> tuple[Float[Array, "n k"], Float[Array, "n k"]]:
        """∂f/∂z at `position`, and its first-order change when z moves by `move`."""
        z = self.predictors(position, block)
        return jax.jvp(lambda at: self._slopes(at, block), (z,), (move,))


_RowFunction = Callable[[Float[Array, "n k"]], PerRow]


def _derivative(function: _RowFunction, along: Float[Array, "n k"]) -> _RowFunction:
    """The derivative of each row along its own direction."""
    return lambda z: jax.jvp(function, (z,), (along,))[1]
