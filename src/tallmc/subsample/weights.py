"""Weights for preferential subsampling: how much each row matters to the noise of an estimator.

    gradient    ‖∇f_i(θ̂)‖                    for the simple estimator          putcha-2023, eq. 11
    curvature   √tr(∇²f_i(θ̂) Σ̂ ∇²f_i(θ̂)ᵀ)    for control variates              putcha-2023, eq. 16
    frobenius   ‖∇²f_i(θ̂)‖_F                 for control variates around a recent position
    lipschitz   L_i                          for any estimator, without anchor  Zhao and Zhang (2015)

The first two are the state-dependent optima (eqs. 10 and 14) with the state at the mode, and averaged over the Laplace
approximation; the third is the second for a centre that follows the chain. Each is one pass over the rows, a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._anchor import Anchor, Needs
from .._arrays import check_numeric
from .._errors import InvalidInput, check_number
from .._posterior import AbstractPosterior
from .._rows import map_rows


def gradient_weights(posterior: AbstractPosterior, anchor: Anchor) -> Float[Array, " N"]:
    """‖∇f_i(θ̂)‖, eq. 11."""
    _check_anchor(anchor)
    return _gradient_norms(posterior, anchor.position)


def curvature_weights(posterior: AbstractPosterior, anchor: Anchor) -> Float[Array, " N"]:
    """√tr(∇²f_i(θ̂) Σ̂ ∇²f_i(θ̂)ᵀ), eq. 16, without a d×d matrix for any row."""
    _check_anchor(anchor)
    if anchor.factor is None:
        raise InvalidInput("anchor", "have a Hessian for curvature weights", "none", "Use laplace(posterior, hessian=True).")
    return _curvature_norms(posterior, anchor.position, anchor.factor)


def frobenius_weights(posterior: AbstractPosterior, anchor: Anchor) -> Float[Array, " N"]:
    """‖∇²f_i(θ̂)‖_F: eq. 16 with Σ̂ ∝ I, for a centre from which the chain has walked alike in all directions."""
    _check_anchor(anchor)
    return _curvature_norms(posterior, anchor.position, jnp.eye(posterior.dim, dtype=posterior.dtype))


def lipschitz_weights(posterior: AbstractPosterior, anchor: Anchor | None = None) -> Float[Array, " N"]:
    """L_i, the Lipschitz constants of the rows' gradients."""
    return _lipschitz(posterior)


def _check_anchor(anchor: Anchor) -> None:
    if not isinstance(anchor, Anchor):
        raise InvalidInput("anchor", "come from laplace(posterior)", type(anchor).__name__)


class WeightRule(NamedTuple):
    weigh: Callable[[AbstractPosterior, Anchor], Float[Array, " N"]]
    needs: Needs
    equation: str


WEIGHT_RULES = {
    "gradient": WeightRule(gradient_weights, Needs.MODE, "eq. 11"),
    "curvature": WeightRule(curvature_weights, Needs.HESSIAN, "eq. 16"),
    "frobenius": WeightRule(frobenius_weights, Needs.MODE, "p_i ∝ ‖H_i‖"),
    "lipschitz": WeightRule(lipschitz_weights, Needs.NOTHING, "p_i ∝ L_i"),
}


def probabilities(weights: ArrayLike, floor: float) -> np.ndarray:
    """p_i = (1 − δ) w_i/Σw + δ/N, with δ = `floor`: then no importance weight 1/(N p_i) exceeds 1/δ.

    >>> probabilities([1.0, 3.0], floor=0.0)
    array([0.25, 0.75])
    """
    check_number("floor", floor, 0, 1)
    raw = np.asarray(check_numeric("preferential weights", weights), np.float64)
    if raw.ndim != 1 or not raw.size:
        raise InvalidInput("preferential weights", "be a vector, one number a row", f"shape {raw.shape}")
    bad = ~np.isfinite(raw) | (raw < 0)
    if bad.any():
        row = np.argmax(bad)
        raise InvalidInput("preferential weights", "be finite and not negative", f"{raw[row]:g} in row {row}")
    total = raw.sum()
    if floor == 0 and not (raw > 0).all():
        row = np.argmin(raw)
        raise InvalidInput(
            "preferential weights",
            "be strictly positive",
            f"p = 0 in row {row}, which would never be drawn: that biases the gradient",
            "Pass floor=0.05 to mix in uniform weights.",
        )
    share = raw / total if total > 0 else np.full(len(raw), 1 / len(raw))
    return (1 - floor) * share + floor / len(raw)


@eqx.filter_jit
def _gradient_norms(posterior: AbstractPosterior, position: Float[Array, " d"]) -> Float[Array, " N"]:
    def block(rows):  # type: ignore[no-untyped-def]
        return posterior.norms(posterior.row_gradients(position, rows), rows)

    return map_rows(block, posterior.data, posterior.width)


@eqx.filter_jit
def _curvature_norms(
    posterior: AbstractPosterior, position: Float[Array, " d"], factor: Float[Array, "d d"]
) -> Float[Array, " N"]:
    return map_rows(lambda rows: posterior.curvature_norms(position, factor, rows), posterior.data, posterior.width)


@eqx.filter_jit
def _lipschitz(posterior: AbstractPosterior) -> Float[Array, " N"]:
    return posterior.lipschitz()
