"""The design matrix that is sampled, and the way back to coefficients of the user's columns.

    design      D = (X − c) F V           one standard normal prior per column
    slopes      coef = F V u              u: the sampled parameters of these columns
    intercept   sampled − cᵀ coef

c are the means of the columns, F = diag(prior scale / sd). V is the identity unless columns are
collinear. Then V are the eigenvectors of the columns' cross products. An orthogonal V leaves the
prior as it is. The data do not depend on u along an eigenvector with eigenvalue 0, so that column
of D is set to exact zeros. Otherwise float32 could not tell the curvature of the prior in that
direction, 1, from the rounding of the curvature of N rows in the others.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from ..._core.arrays import check_numeric
from ..._core.errors import InvalidInput
from ...methods.automatic import FEW_ROWS
from ...models.design import Observations

_ROWS_PER_BLOCK = 2**16
_CONSTANT = 1e-12
"""Columns whose sd is at most this multiple of their size are constant up to rounding."""
_UNSEEN = 1e-6
"""Largest information of all rows on a direction that is left to the prior; the prior's is 1."""
_MOST_COLUMNS = 2_000  # with more columns, the default method uses no matrix of this size either
_FEWEST_ROWS = 256


@dataclasses.dataclass(frozen=True)
class ColumnScaling:
    """How columns of X become columns of the design matrix."""

    centre: Float[np.ndarray, " p"]
    factor: Float[np.ndarray, " p"]
    rotation: Float[np.ndarray, "p p"] | None
    seen: np.ndarray

    @classmethod
    def of(
        cls,
        X: Float[np.ndarray, "n p"],
        prior_scale: Float[np.ndarray, " p"],
        *,
        centred: bool,
        standardised: bool,
    ) -> ColumnScaling:
        """Measure the columns: means if `centred`, sds if `standardised`, collinearity."""
        p = X.shape[1]
        centre = X.mean(axis=0, dtype=np.float64) if centred else np.zeros(p)
        factor = prior_scale
        if standardised:
            squares = sum(np.sum((block - centre) ** 2, axis=0) for block in _blocks(X))
            sd = np.sqrt(squares / len(X))
            size = np.maximum(np.abs(centre), np.finfo(np.float64).tiny)
            factor = prior_scale / np.where(sd > _CONSTANT * size, sd, 1.0)
        plain = cls(centre, factor, None, np.ones(p, bool))
        if p > _MOST_COLUMNS:
            return plain
        products = np.zeros((p, p))
        for block in _blocks(X):
            columns = (block - centre) * factor
            products += columns.T @ columns
        information, directions = np.linalg.eigh(products)
        # Rounding of the products limits how small an eigenvalue can be recognised.
        rounding = p * np.finfo(np.float64).eps * information[-1]
        seen = information > max(_UNSEEN, rounding)
        return plain if seen.all() else cls(centre, factor, directions, seen)

    def design(
        self, X: Float[np.ndarray, "n p"], intercept_scale: float | None, dtype: np.dtype
    ) -> Float[np.ndarray, "n c"]:
        """D, with a first column for the intercept unless `intercept_scale` is None."""
        first = 0 if intercept_scale is None else 1
        result = np.empty((len(X), first + X.shape[1]), dtype)
        result[:, :first] = intercept_scale or 0.0
        start = 0
        for block in _blocks(X):
            columns = (block - self.centre) * self.factor
            if self.rotation is not None:
                columns = np.where(self.seen, columns @ self.rotation, 0.0)
            result[start : start + len(block), first:] = columns
            start += len(block)
        return result

    def column_names(self, features: Sequence[str], intercept: bool) -> list[str]:
        """Names of the columns of D; a rotated column is named after its largest parts."""
        names = list(features)
        if self.rotation is not None:
            large = np.abs(self.rotation) > 0.1 * np.abs(self.rotation).max(axis=0)
            parts = [list(itertools.compress(features, column)) for column in large.T]
            names = [
                f"a combination of {', '.join(some[:4])}" if len(some) > 1 else some[0]
                for some in parts
            ]
        return ["intercept", *names] if intercept else names

    def slopes(self, sampled: Float[np.ndarray, "*k p"]) -> Float[np.ndarray, "*k p"]:
        rotated = sampled if self.rotation is None else sampled @ self.rotation.T
        return rotated * self.factor


def check_scales(parameter: str, scales: ArrayLike, n_columns: int) -> Float[np.ndarray, " p"]:
    """Prior scales as one per column; raises unless all are positive and finite."""
    values = np.asarray(check_numeric(parameter, scales), np.float64)
    if values.shape not in ((), (n_columns,)) or not ((values > 0) & np.isfinite(values)).all():
        rule = f"be positive and finite, a number or one per column ({n_columns})"
        raise InvalidInput(parameter, rule, scales)
    return np.broadcast_to(values, (n_columns,))


def with_neutral_rows(
    x: Float[np.ndarray, "n c"], y: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "m c"], Float[np.ndarray, " m"]]:
    """Append rows of zeros to few rows, so that data sets of many sizes share compiled programs.

    Programs that use all rows in every step are compiled for the number of rows. A row of zeros has
    the same likelihood for all coefficients, unless the model has further parameters.
    """
    n_rows = len(x)
    if n_rows > FEW_ROWS:
        return x, y
    wanted = min(max(_FEWEST_ROWS, 1 << (n_rows - 1).bit_length()), FEW_ROWS)
    missing = wanted - n_rows
    return np.pad(x, ((0, missing), (0, 0))), np.pad(y, (0, missing))


def _blocks(X: Float[np.ndarray, "n p"]) -> Iterator[Float[np.ndarray, "b p"]]:
    for start in range(0, len(X), _ROWS_PER_BLOCK):
        yield np.asarray(X[start : start + _ROWS_PER_BLOCK], np.float64)


# New rows for the draws of an estimator: `estimator.draws_.predict(X)`.
@dataclasses.dataclass(frozen=True)
class NewColumns:
    """Turns a matrix with the columns of the fit into rows of the model."""

    scaling: ColumnScaling
    intercept_scale: float | None

    def __call__(
        self, new_rows: Any, *, response: bool, offset: ArrayLike | None, trials: ArrayLike | None
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
