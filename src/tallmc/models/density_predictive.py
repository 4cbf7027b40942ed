"""The law of new rows for a posterior that is given by log densities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from ..core.errors import InvalidInput
from ..core.pytrees import Uncompared
from ..rows.base import RowBlock
from .densities import DensityModel
from .new_rows import rows_like
from .predictive import AbstractPredictive
from .transforms import Constraints


class DensityPredictive(AbstractPredictive):
    """The law of rows whose log-likelihood is a function of the user.

    **Arguments:**

    - `model`: the model.
    - `row_shapes`: shapes and dtypes of one row of its data.
    - `constraints`: maps the parameters of the model to those of the user's functions.
    - `simulation`: `simulation(key, params, row)` draws a response; None if it is unknown.
    - `expectation`: `expectation(params, row)` is the mean of the response; None if it is unknown.
    """

    model: DensityModel
    constraints: Constraints | None
    simulation: Callable[..., Any] | None
    expectation: Callable[..., Any] | None
    row_shapes: Uncompared[PyTree[jax.ShapeDtypeStruct]] = eqx.field(static=True)

    def __init__(
        self,
        model: DensityModel,
        row_shapes: PyTree[jax.ShapeDtypeStruct],
        constraints: Constraints | None = None,
        simulation: Callable[..., Any] | None = None,
        expectation: Callable[..., Any] | None = None,
    ):
        self.model, self.constraints = model, constraints
        self.simulation, self.expectation = simulation, expectation
        self.row_shapes = Uncompared(row_shapes)

    @property
    def response_name(self) -> str:
        return "y"

    @property
    def classes(self) -> None:
        return None

    def encode(
        self,
        new_rows: Any,
        *,
        response: bool = False,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> RowBlock:
        if offset is not None or trials is not None:
            rule = "be left out: rows have the structure of the data of the posterior"
            raise InvalidInput("offset and trials", rule, "numbers")
        return rows_like(self.row_shapes.value, new_rows)

    def observed(self, rows: RowBlock) -> None:
        return None

    def mean(self, position: Float[Array, " d"], rows: RowBlock) -> Float[Array, "n ..."]:
        function = _known(self.expectation, "mean=function(params, row)")
        return jax.vmap(function, in_axes=(None, 0))(self._params(position), rows)

    def simulate(
        self, key: PRNGKeyArray, position: Float[Array, " d"], rows: RowBlock
    ) -> Float[Array, " n"]:
        function = _known(self.simulation, "simulate=function(key, params, row)")
        keys = jax.random.split(key, jax.tree.leaves(rows)[0].shape[0])
        return jax.vmap(function, in_axes=(0, None, 0))(keys, self._params(position), rows)

    def log_likelihood(self, position: Float[Array, " d"], rows: RowBlock) -> Float[Array, " n"]:
        return -self.model.row_potentials(position, rows)

    def _params(self, position: Float[Array, " d"]) -> PyTree:
        params = self.model.layout.unravel(position)
        return params if self.constraints is None else self.constraints(params)


def _known(function: Callable[..., Any] | None, argument: str) -> Callable[..., Any]:
    if function is None:
        cure = f"Pass Posterior(..., {argument})."
        raise InvalidInput("posterior", "know the law of its response", "a log-likelihood", cure)
    return function
