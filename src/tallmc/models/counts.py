"""Models of counts on simplices: what a sampler needs is expected counts, not gradients.

A model has one or several simplices. Point w on a simplex has the prior Dirichlet(α), and the rows
determine counts n_i of the categories, given w and the latent variables z_i of row i:

    p(w, z | x) ∝ Π_k w_k^{α_k − 1 + Σ_i n_ik(x_i, z_i)},   n̂ = Σ_{i∈S} w_i E[n_i | w, x_i]

The sum over a batch S of rows with weights w_i estimates Σ_i E n_i without bias if the expectation
is exact. Patterson and Teh (2013), section 4, and Baker et al. (2018), section 4. A position holds
θ > 0, and w = θ/θ. along the last axis is what users see (`methods/simplex/`).

A model of counts has no gradients of rows. Methods that need them are refused with one message.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, NoReturn

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput
from ..core.quantities import ComputedQuantities
from ..rows.base import AbstractRows
from ..rows.batch import Batch
from .base import AbstractModel
from .posterior import ModelPosterior


class AbstractCountsModel(AbstractModel):
    """Expected counts of rows, given points on simplices."""

    prior: eqx.AbstractVar[Float[Array, "*k"]]
    """α, in the shape of θ; the last axis is a simplex."""

    @property
    def log_concave(self) -> bool:
        return False

    @property
    def bounded(self) -> bool:
        return False

    @abc.abstractmethod
    def expected_counts(
        self, simplex: Float[Array, "*k"], batch: Batch, key: PRNGKeyArray
    ) -> Float[Array, "*k"]:
        """Σ w_i E n_i over the rows of a batch with weights w_i, given w in the shape of α."""

    def theta(self, position: Float[Array, " d"]) -> Float[Array, "*k"]:
        """θ in the shape of α."""
        return position.reshape(self.prior.shape)

    def simplex(self, position: Float[Array, " d"]) -> Float[Array, "*k"]:
        """w = θ/θ. ."""
        theta = self.theta(position)
        return theta / jnp.sum(theta, axis=-1, keepdims=True)

    def prior_potential(self, position: Any) -> NoReturn:
        self._refuse()

    def row_potentials(self, position: Any, rows: Any) -> NoReturn:
        self._refuse()

    def row_gradients(self, position: Any, rows: Any) -> NoReturn:
        self._refuse()

    def linear_row_gradients(self, centre: Any, move: Any, rows: Any) -> NoReturn:
        self._refuse()

    def remainders(self, order: int, position: Any, centre: Any, rows: Any) -> NoReturn:
        self._refuse()

    def sum_remainders(self, order: int, position: Any, centre: Any, batch: Any) -> NoReturn:
        self._refuse()

    def mean_square_remainders(
        self, order: int, centre: Any, positions: Any, metric: Any, rows: Any
    ) -> NoReturn:
        self._refuse()

    def gaussian_mean_square_remainders(
        self, order: int, centre: Any, spread: Any, width: Any, metric: Any, rows: Any
    ) -> NoReturn:
        self._refuse()

    def combine(self, compact: Any, rows: Any, weights: Any) -> NoReturn:
        self._refuse()

    def expand(self, compact: Any, rows: Any) -> NoReturn:
        self._refuse()

    def norms(self, compact: Any, rows: Any) -> NoReturn:
        self._refuse()

    def block_hessian(self, position: Any, rows: Any, weights: Any) -> NoReturn:
        self._refuse()

    def curvature_norms(self, position: Any, factor: Any, rows: Any) -> NoReturn:
        self._refuse()

    def row_lipschitz(self, rows: Any) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidInput(
            "method",
            "need no gradients: the rows of a model of counts have none",
            "a method that evaluates gradients or potentials",
            "Use tallmc.scir(step_size=..., size=...) or tallmc.sgrld_simplex(...).",
        )


def counts_posterior(
    model: AbstractCountsModel,
    rows: AbstractRows,
    name: str,
    dims: tuple[str, ...],
    coords: Mapping[str, tuple[str, ...]],
    description: Mapping[str, str],
) -> ModelPosterior:
    """A posterior whose quantity `name` is w."""
    quantities = ComputedQuantities(
        lambda position: {name: model.simplex(position)}, model.dim, {name: dims}, coords
    )
    return ModelPosterior(model, rows, quantities, None, description)


def checked_prior(parameter: str, prior: ArrayLike, size: int) -> Float[np.ndarray, " k"]:
    """α as a vector of positive numbers, from a number or a vector."""
    values = np.asarray(check_numeric(parameter, prior), np.float64)
    if values.shape not in ((), (size,)) or not (np.isfinite(values) & (values > 0)).all():
        raise InvalidInput(parameter, f"be a positive number, or {size} of them", prior)
    return np.broadcast_to(values, (size,))


def checked_counts(parameter: str, counts: Any, one: str) -> np.ndarray:
    """A matrix of counts from an array or a SciPy sparse matrix, as integers."""
    values = np.asarray(
        check_numeric(parameter, counts.toarray() if hasattr(counts, "toarray") else counts)
    )
    if values.ndim != 2 or 0 in values.shape:
        rule = f"be a matrix with one row per {one} and one column per category"
        raise InvalidInput(parameter, rule, f"shape {values.shape}")
    wrong = ~(np.isfinite(values) & (values >= 0) & (values % 1 == 0))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        found = f"{values[row, column]} in row {row}, column {column}"
        raise InvalidInput(parameter, "be counts: 0, 1, 2, …", found)
    return values.astype(np.int64)


def checked_labels(parameter: str, labels: Any, size: int, dim: str) -> dict[str, tuple[str, ...]]:
    """Names of the entries of a dimension; no names if `labels` is None."""
    if labels is None:
        return {}
    names = tuple(map(str, labels))
    if len(names) != size:
        raise InvalidInput(parameter, f"have one name per column ({size})", len(names))
    return {dim: names}
