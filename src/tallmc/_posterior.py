"""A posterior over many rows, f(θ) = f₀(θ) + Σ f_i(θ) with f_i = −log p(x_i | θ), f₀ = −log prior; the target is exp(−f).

Everything in the library sees a posterior through `AbstractPosterior`. A row's gradient appears there in a *compact* form,
whatever is cheapest for the model: for a generalised linear model ∇f_i = c_i x_i and the compact form is the scalar c_i; for
a general model it is the gradient itself. Compact gradients add and subtract like gradients, `combine` turns them into
Σ w_i ∇f_i, `norms` into ‖∇f_i‖ and `expand` into ∇f_i, so estimators, weights and tables of gradients are written once for all
models.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from ._arrays import check_numeric, to_device
from ._errors import InvalidInput
from ._layout import Layout, layout_of
from ._random import new_key, standard_normal
from ._rows import Part, Sum, count_rows, dot, floats_per_row, split_sum, sum_rows

if TYPE_CHECKING:
    from .geometry import AbstractGeometry

_PROBED_POSITIONS = 16
_PROBED_DIRECTIONS = 4


class AbstractPosterior(eqx.Module):
    """What the parts need to know about a model. Positions are flat vectors; `layout` restores the user's pytree."""

    data: eqx.AbstractVar[PyTree[Array]]
    init: eqx.AbstractVar[Float[Array, " d"]]
    layout: eqx.AbstractVar[Layout]

    @property
    def n_rows(self) -> int:
        return count_rows(self.data)

    @property
    def dim(self) -> int:
        return self.init.shape[0]

    @property
    def width(self) -> int:
        """Floats that a row takes up in a pass: its columns or its gradient, whichever is more."""
        return max(self.dim, floats_per_row(self.data))

    @property
    def dtype(self) -> Any:
        return self.init.dtype

    def without_copies(self) -> AbstractPosterior:
        """The same posterior with nothing that is there for speed alone: its data once, as they were given."""
        return self

    def prior_gradient(self, position: Float[Array, " d"]) -> Float[Array, " d"]:
        """∇f₀(θ)."""
        return jax.grad(self.prior_potential)(position)

    def potential_and_gradient_sum(self, position: Float[Array, " d"], part: Part | None = None) -> Sum:
        """(f(θ), ∇f(θ)) in one pass over all rows, or a part of them. What is not used of the two is not computed."""

        def block_sum(rows: PyTree[Array]) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, " d"]]:
            ones = jnp.ones(count_rows(rows), self.dtype)
            gradient = self.sum_remainders(0, position, position, rows, ones)
            return *split_sum(self.row_potentials(position, rows)), gradient

        total = sum_rows(block_sum, self.data, self.width, part)
        (high, remainder, gradient), (low, remainder_low, gradient_low) = total.high, total.low
        low = low + (remainder + remainder_low) + self.prior_potential(position)
        return Sum((high, gradient), (low, gradient_low + self.prior_gradient(position)))

    def hessian_sum(self, position: Float[Array, " d"], part: Part | None = None) -> Sum:
        """∇²f(θ) over all rows, or a part of them."""
        total = sum_rows(lambda rows: self.block_hessian(position, rows), self.data, self.width, part)
        return Sum(total.high, total.low + jax.hessian(self.prior_potential)(position))

    def remainders(
        self, order: int, position: Float[Array, " d"], centre: Float[Array, " d"], rows: PyTree[Array]
    ) -> Float[Array, "n ..."]:
        """∇f_i(θ) less the first `order` (0, 1 or 2) terms of its Taylor series around `centre`, compact."""
        gradients = self.row_gradients(position, rows)
        if order == 0:
            return gradients
        if order == 1:
            return gradients - self.row_gradients(centre, rows)
        return gradients - self.linear_row_gradients(centre, position - centre, rows)

    def sum_remainders(
        self,
        order: int,
        position: Float[Array, " d"],
        centre: Float[Array, " d"],
        rows: PyTree[Array],
        weights: Float[Array, " n"],
        indices: Int[Array, " n"] | None = None,
    ) -> Float[Array, " d"]:
        """Σ w_i r_i, r_i the `remainders`. `indices` are the rows' numbers, for those who would rather read them themselves."""
        return self.combine(self.remainders(order, position, centre, rows), rows, weights)

    @eqx.filter_jit
    def potential(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        """f(θ), minus the log posterior density up to a constant."""
        return self.potential_and_gradient_sum(position).rounded()[0]

    @eqx.filter_jit
    def gradient(self, position: Float[Array, " d"]) -> Float[Array, " d"]:
        """∇f(θ), exact: a pass over all rows."""
        return self.potential_and_gradient_sum(position).rounded()[1]

    @eqx.filter_jit
    def hessian(self, position: Float[Array, " d"]) -> Float[Array, "d d"]:
        """∇²f(θ), exact: a pass over all rows."""
        return self.hessian_sum(position).rounded()

    @abc.abstractmethod
    def prior_potential(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        """f₀(θ) = −log prior."""

    @abc.abstractmethod
    def row_potentials(self, position: Float[Array, " d"], rows: PyTree[Array]) -> Float[Array, " n"]:
        """f_i(θ)."""

    @abc.abstractmethod
    def row_gradients(self, position: Float[Array, " d"], rows: PyTree[Array]) -> Float[Array, "n ..."]:
        """∇f_i(θ), compact."""

    @abc.abstractmethod
    def linear_row_gradients(
        self, centre: Float[Array, " d"], move: Float[Array, " d"], rows: PyTree[Array]
    ) -> Float[Array, "n ..."]:
        """∇f_i(c) + ∇²f_i(c) v, compact: the gradient at c + v to first order in v."""

    @abc.abstractmethod
    def mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        positions: Float[Array, "k d"],
        metric: AbstractGeometry,
        rows: PyTree[Array],
    ) -> Float[Array, " n"]:
        """The mean of ‖Cᵀr_i(θ)‖² over these positions, r_i the `remainders` and C the `metric`."""

    @abc.abstractmethod
    def gaussian_mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        spread: AbstractGeometry,
        width: Float[Array, ""],
        metric: AbstractGeometry,
        rows: PyTree[Array],
    ) -> Float[Array, " n"]:
        """The same over θ = centre + width · Fξ, ξ standard normal, F the `spread`."""

    @abc.abstractmethod
    def combine(self, compact: Float[Array, "n ..."], rows: PyTree[Array], weights: Float[Array, " n"]) -> Float[Array, " d"]:
        """Σ w_i ∇f_i from compact gradients."""

    @abc.abstractmethod
    def expand(self, compact: Float[Array, "n ..."], rows: PyTree[Array]) -> Float[Array, "n d"]:
        """∇f_i from compact gradients."""

    @abc.abstractmethod
    def norms(self, compact: Float[Array, "n ..."], rows: PyTree[Array]) -> Float[Array, " n"]:
        """‖∇f_i‖ from compact gradients."""

    @abc.abstractmethod
    def block_hessian(self, position: Float[Array, " d"], rows: PyTree[Array]) -> Float[Array, "d d"]:
        """Σ ∇²f_i(θ) over these rows."""

    @abc.abstractmethod
    def curvature_norms(
        self, position: Float[Array, " d"], factor: Float[Array, "d k"], rows: PyTree[Array]
    ) -> Float[Array, " n"]:
        """‖∇²f_i(θ) C‖_F = √tr(H_i Σ H_iᵀ) for Σ = C Cᵀ."""

    @abc.abstractmethod
    def lipschitz(self) -> Float[Array, " N"]:
        """L_i, for every row, with ‖∇f_i(θ) − ∇f_i(θ')‖ ≤ L_i ‖θ − θ'‖ (putcha-2023, Assumption 1)."""


class Posterior(AbstractPosterior):
    """Any model: two log densities, the rows, and a starting point. Derivatives come by automatic differentiation.

    `log_likelihood(params, row)` and `log_prior(params)` return scalars; `params` has the structure of `init`, and `row` that of
    `data` without the leading axis of its arrays. `lipschitz` (a number, or one a row) is for the parts that ask for it.

    >>> import jax.numpy as jnp, jax.scipy.stats as stats
    >>> heights = jnp.array([1.62, 1.75, 1.80, 1.68])
    >>> posterior = Posterior(
    ...     log_likelihood=lambda params, height: stats.norm.logpdf(height, params["mean"], 0.1),
    ...     log_prior=lambda params: stats.norm.logpdf(params["mean"], 1.7, 1.0),
    ...     data=heights,
    ...     init={"mean": 1.7},
    ... )
    >>> posterior.n_rows, posterior.dim
    (4, 1)
    >>> posterior.gradient(jnp.array([1.7])).round(3)        # −Σ (height − 1.7) / 0.1²
    Array([-5.], dtype=float32)
    """

    log_likelihood: Callable[[PyTree, PyTree], Float[Array, ""]]
    log_prior: Callable[[PyTree], Float[Array, ""]]
    data: PyTree[Array]
    init: Float[Array, " d"]
    layout: Layout = eqx.field(static=True)
    lipschitz_constants: Float[Array, " N"] | None

    def __init__(
        self,
        log_likelihood: Callable[[PyTree, PyTree], Any],
        log_prior: Callable[[PyTree], Any],
        data: PyTree[ArrayLike],
        init: PyTree[ArrayLike],
        lipschitz: ArrayLike | None = None,
    ):
        for name, density in (("log_likelihood", log_likelihood), ("log_prior", log_prior)):
            if not callable(density):
                raise InvalidInput(name, "be a function", density)
        self.log_likelihood = log_likelihood
        self.log_prior = log_prior
        self.data = _checked_rows(data)
        self.layout, self.init = layout_of(init)
        self.lipschitz_constants = None if lipschitz is None else _checked_lipschitz(lipschitz, self.n_rows, self.dtype)
        row = jax.tree.map(lambda column: jax.ShapeDtypeStruct(column.shape[1:], column.dtype), self.data)
        params = jax.eval_shape(self.layout.unravel, self.init)
        _check_scalar("log_likelihood(params, row)", "It takes one row; sum over its axes.", log_likelihood, params, row)
        _check_scalar("log_prior(params)", "For a flat prior return 0.0.", log_prior, params)

    def prior_potential(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        return -self.log_prior(self.layout.unravel(position))

    def row_potentials(self, position: Float[Array, " d"], rows: PyTree[Array]) -> Float[Array, " n"]:
        return jax.vmap(self._row_potential, in_axes=(None, 0))(position, rows)

    def row_gradients(self, position: Float[Array, " d"], rows: PyTree[Array]) -> Float[Array, "n d"]:
        return jax.vmap(jax.grad(self._row_potential), in_axes=(None, 0))(position, rows)

    def linear_row_gradients(
        self, centre: Float[Array, " d"], move: Float[Array, " d"], rows: PyTree[Array]
    ) -> Float[Array, "n d"]:
        gradients, change = jax.jvp(lambda at: self.row_gradients(at, rows), (centre,), (move,))
        return gradients + change

    def sum_remainders(
        self,
        order: int,
        position: Float[Array, " d"],
        centre: Float[Array, " d"],
        rows: PyTree[Array],
        weights: Float[Array, " n"],
        indices: Int[Array, " n"] | None = None,
    ) -> Float[Array, " d"]:
        # The derivative of a sum takes several times less than a sum of derivatives, which would be n×d numbers.
        gradient = jax.grad(lambda at: dot(weights, self.row_potentials(at, rows)))
        if order == 0:
            return gradient(position)
        if order == 1:
            return gradient(position) - gradient(centre)
        at_centre, change = jax.jvp(gradient, (centre,), (position - centre,))
        return gradient(position) - at_centre - change

    def mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        positions: Float[Array, "k d"],
        metric: AbstractGeometry,
        rows: PyTree[Array],
    ) -> Float[Array, " n"]:
        # ‖Cᵀr‖² = E (ζᵀCᵀr)² for a standard normal ζ: a few of them at each position, and no d×d work for any row.
        def add_position(total: Float[Array, " n"], probe: tuple[Array, Array]) -> tuple[Float[Array, " n"], None]:
            position, key = probe
            directions = metric.push(standard_normal(key, (_PROBED_DIRECTIONS, *centre.shape), centre.dtype))
            projected = dot(self.remainders(order, position, centre, rows), directions.T)
            return total + jnp.mean(projected**2, axis=1), None

        keys = jax.random.split(new_key(0), len(positions))
        total, _ = lax.scan(add_position, jnp.zeros(count_rows(rows), self.dtype), (positions, keys))
        return total / len(positions)

    def gaussian_mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        spread: AbstractGeometry,
        width: Float[Array, ""],
        metric: AbstractGeometry,
        rows: PyTree[Array],
    ) -> Float[Array, " n"]:
        normal = standard_normal(new_key(1), (_PROBED_POSITIONS, *centre.shape), centre.dtype)
        return self.mean_square_remainders(order, centre, centre + width * spread.push(normal), metric, rows)

    def combine(self, compact: Float[Array, "n d"], rows: PyTree[Array], weights: Float[Array, " n"]) -> Float[Array, " d"]:
        return dot(weights, compact)

    def expand(self, compact: Float[Array, "n d"], rows: PyTree[Array]) -> Float[Array, "n d"]:
        return compact

    def norms(self, compact: Float[Array, "n d"], rows: PyTree[Array]) -> Float[Array, " n"]:
        return jnp.linalg.norm(compact, axis=1)

    def block_hessian(self, position: Float[Array, " d"], rows: PyTree[Array]) -> Float[Array, "d d"]:
        return jax.hessian(lambda at: jnp.sum(self.row_potentials(at, rows)))(position)

    def curvature_norms(
        self, position: Float[Array, " d"], factor: Float[Array, "d k"], rows: PyTree[Array]
    ) -> Float[Array, " n"]:
        # One column of C at a time: H_i c is a directional derivative, and no d×d matrix exists for any row.
        def add_column(total: Float[Array, " n"], column: Float[Array, " d"]) -> tuple[Float[Array, " n"], None]:
            _, product = jax.jvp(lambda at: self.row_gradients(at, rows), (position,), (column,))
            return total + jnp.sum(product**2, axis=1), None

        total, _ = lax.scan(add_column, jnp.zeros(count_rows(rows), self.dtype), factor.T)
        return jnp.sqrt(total)

    def lipschitz(self) -> Float[Array, " N"]:
        if self.lipschitz_constants is None:
            raise InvalidInput(
                "posterior", "know its Lipschitz constants for this method", "none", "Pass Posterior(..., lipschitz=L)."
            )
        return self.lipschitz_constants

    def _row_potential(self, position: Float[Array, " d"], row: PyTree[Array]) -> Float[Array, ""]:
        return -self.log_likelihood(self.layout.unravel(position), row)


def _checked_rows(data: PyTree[ArrayLike]) -> PyTree[Array]:
    columns = jax.tree.map(lambda column: to_device("data", column), data)
    leaves = jax.tree.leaves(columns)
    if not leaves:
        raise InvalidInput("data", "hold at least one array", data)
    lengths = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
    if len(lengths) != 1 or None in lengths or 0 in lengths:
        shapes = [leaf.shape for leaf in leaves]
        cure = "Pass arrays: a list is a pytree of its entries." if isinstance(data, (list, tuple)) else ""
        raise InvalidInput("data", "be arrays with one common, non-empty leading axis", f"shapes {shapes}", cure)
    return columns


def _checked_lipschitz(lipschitz: ArrayLike, n_rows: int, dtype: Any) -> Float[Array, " N"]:
    values = np.asarray(check_numeric("lipschitz", lipschitz), np.float64)
    if values.shape not in ((), (n_rows,)) or not np.all(np.isfinite(values)) or not np.all(values > 0):
        raise InvalidInput("lipschitz", f"be positive and finite, a number or one a row ({n_rows})", f"shape {values.shape}")
    return jnp.broadcast_to(jnp.asarray(values, dtype), (n_rows,))


def _check_scalar(name: str, cure: str, fn: Callable[..., Any], *args: Any) -> None:
    result = jax.eval_shape(fn, *args)
    if getattr(result, "shape", None) != () or not jnp.issubdtype(result.dtype, jnp.floating):
        raise InvalidInput(name, "return a floating-point scalar", result, cure)
