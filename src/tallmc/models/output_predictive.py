"""The law of new rows for a model whose response depends on outputs of a function of the row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..core.errors import InvalidInput
from ..core.pytrees import Uncompared
from .densities import DensityModel
from .observations import Observations
from .output_law import OutputLikelihood
from .predictive import AbstractPredictive
from .transforms import Constraints


class OutputPredictive(AbstractPredictive):
    """The law of the response of new rows.

    **Arguments:**

    - `model`: the model.
    - `likelihood`: its likelihood, as a function of constrained parameters.
    - `constraints`: maps the parameters of the model to those of the likelihood; None if equal.
    - `encode_x`, `encode_y`: check the x and the y of new rows, and return arrays of the model.
    - `classes`: names of the classes; None if the response is a number.
    """

    model: DensityModel
    likelihood: OutputLikelihood
    constraints: Constraints | None
    encoders: Uncompared[tuple[Callable[[Any], Array], Callable[[Any], Array]]] = eqx.field(
        static=True
    )
    class_names: Uncompared[tuple[str, ...] | None] = eqx.field(static=True)

    def __init__(
        self,
        model: DensityModel,
        likelihood: OutputLikelihood,
        constraints: Constraints | None,
        encode_x: Callable[[Any], Array],
        encode_y: Callable[[Any], Array],
        classes: tuple[str, ...] | None = None,
    ):
        self.model, self.likelihood, self.constraints = model, likelihood, constraints
        self.encoders, self.class_names = Uncompared((encode_x, encode_y)), Uncompared(classes)

    @property
    def response_name(self) -> str:
        return "y"

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.class_names.value

    def encode(
        self,
        new_rows: Any,
        *,
        response: bool = False,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Observations:
        if offset is not None or trials is not None:
            raise InvalidInput("offset and trials", "be left out: this model has none", "numbers")
        if isinstance(new_rows, Observations):
            return new_rows
        has_response = isinstance(new_rows, tuple) and len(new_rows) == 2
        if response and not has_response:
            raise InvalidInput("new rows", "be a pair (x, y)", type(new_rows).__name__)
        given_x, given_y = new_rows if has_response else (new_rows, None)
        encode_x, encode_y = self.encoders.value
        x = encode_x(given_x)
        if given_y is None:
            return Observations(x, jnp.full(x.shape[0], jnp.nan, self.model.dtype))
        y = encode_y(given_y)
        if y.shape != x.shape[:1]:
            raise InvalidInput("y", f"have one entry per row ({x.shape[0]})", f"shape {y.shape}")
        return Observations(x, y)

    def observed(self, rows: Observations) -> Float[Array, " n"]:
        return rows.y

    def mean(self, position: Float[Array, " d"], rows: Observations) -> Float[Array, "n ..."]:
        return self.likelihood.law.mean(self._outputs(position, rows))

    def simulate(
        self, key: PRNGKeyArray, position: Float[Array, " d"], rows: Observations
    ) -> Float[Array, " n"]:
        return self.likelihood.law.simulate(key, self._outputs(position, rows))

    def log_likelihood(
        self, position: Float[Array, " d"], rows: Observations
    ) -> Float[Array, " n"]:
        return -self.model.row_potentials(position, rows)

    def _outputs(self, position: Float[Array, " d"], rows: Observations) -> Float[Array, "n k"]:
        params = self.model.layout.unravel(position)
        params = params if self.constraints is None else self.constraints(params)
        return self.likelihood.outputs(params, rows.x)
