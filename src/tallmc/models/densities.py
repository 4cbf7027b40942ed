"""Models given by two log densities. Derivatives come from automatic differentiation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._core.arrays import Layout, Scalar, Vector
from .._core.errors import InvalidInput
from .._rows.access import PerRow, RowBlock
from .model import AbstractModel

_CHECKED_ROWS = 3


class DensityModel(AbstractModel):
    """A model given by a log-likelihood and a log prior of the user's parameters."""

    log_likelihood: Callable[[PyTree, PyTree], Any]
    """log p(x_i | θ) of one row or, if `batched`, of each row of a block."""
    log_prior: Callable[[PyTree], Any]
    init: Vector
    layout: Layout = eqx.field(static=True)
    batched: bool = eqx.field(static=True, default=False)

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
