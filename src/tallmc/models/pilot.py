"""A rough mode of a series' posterior, and the curvature there, from a few stretches of the series.

The stretches are spread over the series, so that regimes that come and go are among them. Their
log densities are exact: each starts from the law of a state whose past is unknown. The curvature of
the whole series is that of the stretches times T over their length, plus that of the prior.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.compiler import quickly_compiled
from .densities import DensityModel
from .windows import SeriesPieces, pieces_at

_STRETCHES, _STRETCH = 8, 512
_MOST_STEPS = 300
_LEAST_EIGENVALUE = 1e-6
"""Eigenvalues of the curvature are at least this share of the largest."""


class SeriesPilot(NamedTuple):
    """A rough mode, and a factor of the posterior covariance there."""

    position: Float[np.ndarray, " d"]
    factor: Float[np.ndarray, "d d"]
    """C with C Cᵀ = Σ̂."""


def stretch_length(n_times: int) -> int:
    """How long a stretch of the pilot is."""
    return min(_STRETCH, n_times)


def series_pilot(model: DensityModel, y: Float[np.ndarray, "T p"]) -> SeriesPilot:
    """The pilot of a model whose windows are stretches without buffer, searched from its init."""
    stretch = stretch_length(len(y))
    n = max(1, min(_STRETCHES, len(y) // stretch))
    times = np.linspace(0, len(y) - stretch, n).astype(int)
    pieces = jax.tree.map(jnp.asarray, pieces_at(y, times, stretch, 0, 0))
    share = n * stretch / len(y)
    position = _descend(model, pieces)
    of_stretches, of_prior = (
        np.asarray(matrix, np.float64)
        for matrix in _curvatures(model, jnp.asarray(position, model.dtype), pieces)
    )
    hessian = of_stretches / share + of_prior
    values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
    values = np.maximum(values, _LEAST_EIGENVALUE * np.abs(values).max())
    return SeriesPilot(position, vectors / np.sqrt(values))


def _descend(model: DensityModel, pieces: SeriesPieces) -> Float[np.ndarray, " d"]:
    """The end of a search by L-BFGS from the init of the model; the init if that fails."""
    from scipy.optimize import minimize

    def value_and_gradient(at: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _value_and_gradient(model, jnp.asarray(at, model.dtype), pieces)
        return float(value), np.asarray(gradient, np.float64)

    start = np.asarray(model.init, np.float64)
    found = minimize(
        value_and_gradient, start, jac=True, method="L-BFGS-B", options={"maxiter": _MOST_STEPS}
    )
    return found.x if np.isfinite(found.x).all() else start


@quickly_compiled
def _value_and_gradient(
    model: DensityModel, position: Float[Array, " d"], pieces: SeriesPieces
) -> tuple[Float[Array, ""], Float[Array, " d"]]:
    def potential(at: Float[Array, " d"]) -> Float[Array, ""]:
        return model.prior_potential(at) + jnp.sum(model.row_potentials(at, pieces))

    return jax.value_and_grad(potential)(position)


@quickly_compiled
def _curvatures(
    model: DensityModel, position: Float[Array, " d"], pieces: SeriesPieces
) -> tuple[Float[Array, "d d"], Float[Array, "d d"]]:
    """The curvature of the stretches, and that of the prior."""
    weights = jnp.ones(pieces.time.shape, model.dtype)
    prior = jax.hessian(model.prior_potential)(position)
    return model.block_hessian(position, pieces, weights), prior
