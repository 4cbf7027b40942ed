"""Models given by two log densities. Derivatives come from automatic differentiation."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from ..core.errors import InvalidInput
from ..core.layout import Layout
from ..core.linear_maps import AbstractLinearMap, dot
from ..rows.base import RowBlock
from ..rows.batch import Batch
from .base import AbstractModel, taylor_remainders
from .probes import gaussian_positions, mean_square_projections


class AbstractLogLikelihood(eqx.Module):
    """log p(x_i | θ), for many rows and for one row."""

    @abc.abstractmethod
    def of_rows(self, params: PyTree, rows: RowBlock) -> Float[Array, " n"]:
        """The log-likelihood of each row."""

    @abc.abstractmethod
    def of_row(self, params: PyTree, row: PyTree[Array]) -> Float[Array, ""]:
        """The log-likelihood of one row."""


class PerRow(AbstractLogLikelihood):
    """A log-likelihood given as a function of one row."""

    function: Callable[[PyTree, PyTree], Float[Array, ""]]

    def of_rows(self, params: PyTree, rows: RowBlock) -> Float[Array, " n"]:
        return jax.vmap(self.function, in_axes=(None, 0))(params, rows)

    def of_row(self, params: PyTree, row: PyTree[Array]) -> Float[Array, ""]:
        return self.function(params, row)


class Batched(AbstractLogLikelihood):
    """A log-likelihood given as a function of many rows that returns one number per row."""

    function: Callable[[PyTree, RowBlock], Float[Array, " n"]]

    def of_rows(self, params: PyTree, rows: RowBlock) -> Float[Array, " n"]:
        return self.function(params, rows)

    def of_row(self, params: PyTree, row: PyTree[Array]) -> Float[Array, ""]:
        return self.function(params, jax.tree.map(lambda entry: entry[None], row))[0]


class DensityModel(AbstractModel):
    """A model given by a log-likelihood and a log prior of the user's parameters."""

    log_likelihood: AbstractLogLikelihood
    log_prior: Callable[[PyTree], Float[Array, ""]]
    init: Float[Array, " d"]
    layout: Layout = eqx.field(static=True)

    @property
    def log_concave(self) -> bool:
        return False

    @property
    def bounded(self) -> bool:
        return True

    def prior_potential(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        # A flat prior may return the Python number 0.0.
        return jnp.negative(self.log_prior(self.layout.unravel(position)))

    def row_potentials(self, position: Float[Array, " d"], rows: RowBlock) -> Float[Array, " n"]:
        return -self.log_likelihood.of_rows(self.layout.unravel(position), rows)

    def row_gradients(self, position: Float[Array, " d"], rows: RowBlock) -> Float[Array, "n d"]:
        return jax.vmap(jax.grad(self._row_potential), in_axes=(None, 0))(position, rows)

    def linear_row_gradients(
        self, centre: Float[Array, " d"], move: Float[Array, " d"], rows: RowBlock
    ) -> Float[Array, "n d"]:
        gradients, change = jax.jvp(lambda at: self.row_gradients(at, rows), (centre,), (move,))
        return gradients + change

    def remainders(
        self, order: int, position: Float[Array, " d"], centre: Float[Array, " d"], rows: RowBlock
    ) -> Float[Array, "n d"]:
        return taylor_remainders(self, order, position, centre, rows)

    def sum_remainders(
        self, order: int, position: Float[Array, " d"], centre: Float[Array, " d"], batch: Batch
    ) -> Float[Array, " d"]:
        # Differentiating the sum is cheaper than summing row gradients, which needs n×d numbers.
        gradient = jax.grad(lambda at: dot(batch.weights, self.row_potentials(at, batch.rows)))
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
        metric: AbstractLinearMap,
        rows: RowBlock,
    ) -> Float[Array, " n"]:
        def project(at: Float[Array, " d"], directions: Float[Array, "p d"]) -> Float[Array, "p n"]:
            return dot(self.remainders(order, at, centre, rows), directions.T).T

        n_rows = jax.tree.leaves(rows)[0].shape[0]
        return mean_square_projections(project, positions, metric, n_rows)

    def gaussian_mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        spread: AbstractLinearMap,
        width: Float[Array, ""],
        metric: AbstractLinearMap,
        rows: RowBlock,
    ) -> Float[Array, " n"]:
        positions = gaussian_positions(centre, spread, width)
        return self.mean_square_remainders(order, centre, positions, metric, rows)

    def combine(
        self, compact: Float[Array, "n d"], rows: RowBlock, weights: Float[Array, " n"]
    ) -> Float[Array, " d"]:
        return dot(weights, compact)

    def expand(self, compact: Float[Array, "n d"], rows: RowBlock) -> Float[Array, "n d"]:
        return compact

    def norms(self, compact: Float[Array, "n d"], rows: RowBlock) -> Float[Array, " n"]:
        return jnp.linalg.norm(compact, axis=1)

    def block_hessian(
        self, position: Float[Array, " d"], rows: RowBlock, weights: Float[Array, " n"]
    ) -> Float[Array, "d d"]:
        return jax.hessian(lambda at: dot(weights, self.row_potentials(at, rows)))(position)

    def curvature_norms(
        self, position: Float[Array, " d"], factor: Float[Array, "d k"], rows: RowBlock
    ) -> Float[Array, " n"]:
        # H_i c is a directional derivative for each column c of C, so no row needs a d×d matrix.
        def add_column(
            total: Float[Array, " n"], column: Float[Array, " d"]
        ) -> tuple[Float[Array, " n"], None]:
            _, product = jax.jvp(lambda at: self.row_gradients(at, rows), (position,), (column,))
            return total + jnp.sum(product**2, axis=1), None

        n_rows = jax.tree.leaves(rows)[0].shape[0]
        total, _ = lax.scan(add_column, jnp.zeros(n_rows, self.dtype), factor.T)
        return jnp.sqrt(total)

    def row_lipschitz(self, rows: RowBlock) -> Float[Array, " n"]:
        raise InvalidInput(
            "posterior",
            "know its Lipschitz constants for this method",
            "none",
            "Pass Posterior(..., lipschitz=L).",
        )

    def _row_potential(self, position: Float[Array, " d"], row: PyTree[Array]) -> Float[Array, ""]:
        return -self.log_likelihood.of_row(self.layout.unravel(position), row)


def check_scalar(name: str, cure: str, function: Callable[..., Any], *args: Any) -> None:
    """Raise unless `function(*args)` returns a floating-point scalar. `args` are shapes."""
    _check_result(name, (), "return a floating-point scalar", cure, function, *args)


def check_per_row(name: str, n_rows: int, function: Callable[..., Any], *args: Any) -> None:
    """Raise unless `function(*args)` returns one float per row. `args` are shapes."""
    _check_result(name, (n_rows,), "return one floating-point number per row", "", function, *args)


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
