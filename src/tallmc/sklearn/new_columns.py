"""New rows for the draws of an estimator: `estimator.draws_.predict(X)`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput
from ..models.observations import Observations
from .design import ColumnScaling


@dataclasses.dataclass(frozen=True)
class NewColumns:
    """Turns a matrix with the columns of the fit into rows of the model.

    **Arguments:**

    - `scaling`: how columns become columns of the design matrix.
    - `intercept_scale`: the column of the intercept; None without an intercept.
    """

    scaling: ColumnScaling
    intercept_scale: float | None

    def __call__(
        self,
        new_rows: Any,
        *,
        response: bool,
        offset: ArrayLike | None,
        trials: ArrayLike | None,
    ) -> Observations:
        if response or offset is not None or trials is not None:
            rule = "be a matrix, without responses, offsets and trials"
            raise InvalidInput("new rows", rule, "these", "Use the methods of the estimator.")
        X = np.asarray(check_numeric("new rows", np.asarray(new_rows)), np.float64)
        n_columns = len(self.scaling.centre)
        if X.ndim != 2 or not len(X) or X.shape[1] != n_columns or not np.isfinite(X).all():
            rule = f"be a finite matrix with {n_columns} columns, those of the fit"
            raise InvalidInput("new rows", rule, f"shape {X.shape}")
        dtype = jnp.result_type(float)
        x = self.scaling.design(X, self.intercept_scale, dtype)
        return Observations(jnp.asarray(x), jnp.asarray(np.full(len(x), np.nan), dtype))
