"""Metrics G(θ) for Riemannian dynamics: the Fisher information of a generalised linear model, or a function of your own.

Any smooth positive definite G leaves the target right; one near the posterior's curvature makes it easy to walk. The Fisher
metric here is that of a fixed few rows, scaled up: a smooth function of θ whose cost does not grow with N.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PyTree

from .._errors import InvalidInput
from .._layout import Layout
from .._posterior import AbstractPosterior
from .._rows import take_rows
from ..models.glm import GeneralisedLinear, Observations

_FISHER_ROWS = 1000


class AbstractMetric(eqx.Module):
    @abc.abstractmethod
    def __call__(self, position: Float[Array, " d"]) -> Float[Array, "d d"]:
        """G(θ)."""

    def inverse_root(self, position: Float[Array, " d"]) -> Float[Array, "d d"]:
        """R(θ) with RRᵀ = G⁻¹: upper triangular, smooth in θ; NaN where G is not positive definite."""
        lower = jnp.linalg.cholesky(self(position), symmetrize_input=False)
        return solve_triangular(lower, jnp.eye(position.shape[0], dtype=position.dtype), lower=True).T


class FisherMetric(AbstractMetric):
    """∇²f₀ + (N/K) Σ f''(x_iᵀθ) x_i x_iᵀ over K rows chosen once."""

    posterior: GeneralisedLinear
    """Of the chosen rows only."""
    scale: Float[Array, ""]

    def __call__(self, position: Float[Array, " d"]) -> Float[Array, "d d"]:
        rows = self.posterior.block_hessian(position, self.posterior.data)
        return self.scale * rows + jax.hessian(self.posterior.prior_potential)(position)


class OwnMetric(AbstractMetric):
    function: Callable[[PyTree], Float[Array, "d d"]]
    layout: Layout = eqx.field(static=True)

    def __call__(self, position: Float[Array, " d"]) -> Float[Array, "d d"]:
        return self.function(self.layout.unravel(position))


def check_metric(metric: Any) -> None:
    if not callable(metric) and not (isinstance(metric, str) and metric == "fisher"):
        raise InvalidInput("metric", 'be "fisher" or a function of the parameters', metric)


def prepare_metric(metric: Any, posterior: AbstractPosterior) -> AbstractMetric:
    """The metric for this posterior, found to be a metric where chains begin."""
    if metric == "fisher":
        if not isinstance(posterior, GeneralisedLinear):
            rule = "be a function of the parameters for a model that is no generalised linear model"
            raise InvalidInput("metric", rule, metric, "It returns a positive definite d×d matrix.")
        count = min(_FISHER_ROWS, posterior.n_rows)
        chosen = np.random.default_rng(0).choice(posterior.n_rows, count, replace=False)
        few = eqx.tree_at(
            lambda of: of.data, posterior.without_copies(), Observations(*take_rows(posterior.data, jnp.asarray(chosen)))
        )
        return FisherMetric(few, jnp.asarray(posterior.n_rows / count, posterior.dtype))
    own, d = OwnMetric(metric, posterior.layout), posterior.dim
    matrix = np.asarray(own(posterior.init), np.float64)
    if matrix.shape != (d, d) or not np.allclose(matrix, matrix.T, rtol=1e-4) or not np.linalg.eigvalsh(matrix)[0] > 0:
        raise InvalidInput("metric", f"return a symmetric positive definite {d}×{d} matrix at init", matrix)
    return own
