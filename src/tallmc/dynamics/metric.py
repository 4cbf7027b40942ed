"""Metrics G(θ) for Riemannian dynamics: the Fisher information, or a function given by the user.

Any smooth positive definite G leaves the target unchanged; a G close to the posterior's curvature
makes the chain mix well. `FisherMetric` is the Fisher information of a generalised linear model on
a small fixed set of rows, scaled up: a smooth function of θ whose cost does not grow with N.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import PyTree

from .._core.arrays import Layout, Matrix, Scalar, Vector
from .._core.errors import InvalidInput
from .._rows.access import RowAccess
from ..models.design import Observations
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior
from .dynamics import AbstractDynamics

_FISHER_ROWS = 1000


Metric = Callable[[Vector], Matrix]  # G(θ), as a function of the flat position


def inverse_root(metric: Metric, position: Vector) -> Matrix:
    """Return R(θ) with RRᵀ = G⁻¹, upper triangular and smooth in θ.

    R is NaN where G is not positive definite.
    """
    lower = jnp.linalg.cholesky(metric(position), symmetrize_input=False)
    return solve_triangular(lower, jnp.eye(position.shape[0], dtype=position.dtype), lower=True).T


class FisherMetric(eqx.Module):
    """∇²f₀ + (N/K) Σ f''(x_iᵀθ) x_i x_iᵀ over K rows that are chosen once."""

    model: AbstractModel
    rows: Observations
    """The K chosen rows."""
    scale: Scalar
    """N/K."""

    def __call__(self, position: Vector) -> Matrix:
        ones = jnp.ones(len(self.rows.y), position.dtype)
        curvature = self.model.block_hessian(position, self.rows, ones)
        return self.scale * curvature + jax.hessian(self.model.prior_potential)(position)


class OwnMetric(eqx.Module):
    """Metric given by a function of the user's parameters."""

    function: Callable[[PyTree], Matrix]
    layout: Layout = eqx.field(static=True)

    def __call__(self, position: Vector) -> Matrix:
        return self.function(self.layout.unravel(position))


class AbstractRiemannian(AbstractDynamics):
    """Dynamics in a metric, "fisher" or a function from the parameters to a d×d matrix."""

    cost = (
        "A step costs O(d³) and d derivatives of the metric, so the method is for few dimensions."
    )
    takes_geometry = False

    metric: Any = "fisher"

    def __post_init__(self) -> None:
        metric = self.metric
        if not callable(metric) and not (isinstance(metric, str) and metric == "fisher"):
            raise InvalidInput("metric", 'be "fisher" or a function of the parameters', metric)

    def own_coordinates(self, hessian: np.ndarray, noise: np.ndarray, n_rows: int) -> np.ndarray:
        # At the mode of a generalised linear model the Fisher information is the Hessian, which
        # also stands in for a metric of the user's own.
        return np.linalg.inv(np.linalg.cholesky(hessian)).T

    def filled(self, posterior: AbstractPosterior) -> dict[str, Any]:
        return {"metric": prepare_metric(self.metric, posterior)}


def prepare_metric(metric: Any, posterior: AbstractPosterior) -> Metric:
    """Return the metric for this posterior; a user's metric is checked at `posterior.init`."""
    if metric == "fisher":
        if not posterior.model.one_predictor:
            rule = "be a function of the parameters unless the model is a generalised linear model"
            cure = "Pass a function that returns a positive definite d×d matrix."
            raise InvalidInput("metric", rule, metric, cure)
        if posterior.rows.access < RowAccess.TAKE:
            rule = "be a function of the parameters if the rows are not in memory"
            raise InvalidInput("metric", rule, metric)
        count = min(_FISHER_ROWS, posterior.n_rows)
        chosen = np.random.default_rng(0).choice(posterior.n_rows, count, replace=False)
        rows = posterior.rows.take(jnp.asarray(chosen))
        return FisherMetric(
            posterior.model, rows, jnp.asarray(posterior.n_rows / count, posterior.dtype)
        )
    own, d = OwnMetric(metric, posterior.layout), posterior.dim
    matrix = np.asarray(own(posterior.init), np.float64)
    if (
        matrix.shape != (d, d)
        or not np.allclose(matrix, matrix.T, rtol=1e-4)
        or not np.linalg.eigvalsh(matrix)[0] > 0
    ):
        raise InvalidInput(
            "metric", f"return a symmetric positive definite {d}×{d} matrix at init", matrix
        )
    return own
