"""The Gaussian at the anchor: the Hessian and its inverse, in double precision where needed."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..core.errors import PreparationError
from ..models.base import PIECE_ROWS
from .passes import CountedPasses, double_passes
from .search import is_single

_LARGEST_ROUNDING = 0.01
"""How much rounding may change a standard deviation, relatively, in single precision."""
_LARGEST_CHANGE = 0.05
"""How much double precision may change a standard deviation before the user is told."""


class AnchorCurvature(NamedTuple):
    """The curvature at the anchor, and what it says about the distance to the mode."""

    gradient: Float[np.ndarray, " d"]
    hessian: Float[np.ndarray, "d d"]
    covariance: Float[np.ndarray, "d d"]
    decrement: float
    definite: bool
    """Whether the Hessian is positive definite. If not, the covariance is that of its smooth part,
    Σ ∇²f_i plus the positive part of ∇²f₀."""
    warning: str | None


def anchor_curvature(
    passes: CountedPasses, position: Float[np.ndarray, " d"], gradient: Float[np.ndarray, " d"]
) -> AnchorCurvature:
    """The Hessian at `position` and its inverse.

    `position` is in double precision. Rounding it may change the smallest eigenvalues as well.

    **Raises:** `PreparationError` if neither the Hessian nor its smooth part is positive definite.
    """
    hessian, warning = passes.hessian(position), None
    inverse_root = _inverse_root(hessian)
    rounding = inverse_root is None or _may_be_rounding(hessian, inverse_root, passes)
    double = double_passes(passes.posterior) if rounding and is_single(passes.posterior) else None
    if double is not None:
        _, gradient = double.value_and_gradient(position)
        accurate = double.hessian(position)
        accurate_root = _inverse_root(accurate)
        error = _error(inverse_root, accurate_root)
        if error is not None:
            warning = (
                f"single precision is too coarse for the curvature at the mode: {error}. "
                "The anchor was computed in double precision, but the chains run in single. Call "
                'jax.config.update("jax_enable_x64", True) first and pass the data as float64.'
            )
        hessian, inverse_root = accurate, accurate_root
        passes.n_row_evals += double.n_row_evals
    definite = inverse_root is not None
    if inverse_root is None:
        smallest = _smallest(hessian)
        hessian, smooth = _smooth_part(passes, position)
        inverse_root = _inverse_root(smooth)
        if inverse_root is None:
            raise PreparationError(
                "the Hessian at the mode must be positive definite; "
                f"its smallest eigenvalue is {smallest:.3g}. "
                "Use a proper prior, another init, or a method that needs no Hessian."
            )
    covariance = inverse_root.T @ inverse_root
    decrement = float(np.linalg.norm(inverse_root @ gradient))
    return AnchorCurvature(gradient, hessian, covariance, decrement, definite, warning)


def _inverse_root(matrix: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"] | None:
    """L⁻¹ with L Lᵀ = `matrix`, or None if the matrix is not positive definite."""
    try:
        return np.linalg.inv(np.linalg.cholesky(matrix))
    except np.linalg.LinAlgError:
        return None


def _may_be_rounding(
    hessian: Float[np.ndarray, "d d"],
    inverse_root: Float[np.ndarray, "d d"],
    passes: CountedPasses,
) -> bool:
    """Whether rounding may change a standard deviation by one per cent.

    H_jj (H⁻¹)_jj, the variance inflation factor of parameter j, does not depend on its units. The
    Hessian is a sum over pieces of the rows. A piece has a relative error of some ε√n, n the rows
    of a piece, and the errors of the pieces average out.
    """
    inflation = np.diag(hessian) * np.sum(inverse_root**2, axis=0)
    epsilon = float(jnp.finfo(passes.posterior.dtype).eps)
    error = epsilon * PIECE_ROWS / np.sqrt(passes.posterior.n_rows)
    return bool(inflation.max() * error > _LARGEST_ROUNDING)


def _error(
    inverse_root: Float[np.ndarray, "d d"] | None, accurate: Float[np.ndarray, "d d"] | None
) -> str | None:
    """What single precision makes of the curvature; None if it is right or double is no cure."""
    if accurate is None:
        return None
    if inverse_root is None:
        return "in it, the Hessian is not positive definite"
    ratio = np.linalg.norm(inverse_root, axis=0) / np.linalg.norm(accurate, axis=0)
    change = float(np.abs(ratio - 1).max())
    return f"standard deviations are {change:.0%} off" if change > _LARGEST_CHANGE else None


def _smooth_part(
    passes: CountedPasses, position: Float[np.ndarray, " d"]
) -> tuple[Float[np.ndarray, "d d"], Float[np.ndarray, "d d"]]:
    """The Hessian without infinite curvature of the prior, and without its negative curvature."""
    double = double_passes(passes.posterior) or CountedPasses(passes.posterior)
    rows, prior = double.hessian_parts(position)
    passes.n_row_evals += double.n_row_evals
    finite = np.where(np.isfinite(prior), prior, 0.0)
    values, vectors = np.linalg.eigh(finite)
    return rows + finite, rows + (vectors * np.maximum(values, 0.0)) @ vectors.T


def _smallest(matrix: Float[np.ndarray, "d d"]) -> float:
    """The smallest eigenvalue; NaN if the matrix is not finite."""
    return float(np.linalg.eigvalsh(matrix)[0]) if np.isfinite(matrix).all() else np.nan
