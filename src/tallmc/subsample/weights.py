"""Weights for preferential subsampling: how much each row matters to the noise of an estimator.

    gradient    ‖∇f_i(θ̂)‖                    for the simple estimator          putcha-2023, eq. 11
    curvature   √tr(∇²f_i(θ̂) Σ̂ ∇²f_i(θ̂)ᵀ)    for control variates              putcha-2023, eq. 16
    frobenius   ‖∇²f_i(θ̂)‖_F                 for control variates around a recent position
    lipschitz   L_i                          for any estimator, without anchor  Zhao and Zhang (2015)
    residual    √E‖Cᵀr_i(θ)‖²                for control variates of any order, in any metric

r_i is the estimator's own residual, C the geometry that the dynamics moves in, θ ~ N(θ̂, 1.5² Σ̂): wider than the posterior should
be, since rows that matter in its tails only are the ones that do harm when they are seldom seen. One-dimensional quadrature for a
GLM, random probes for other models (`mean_square_remainders`), O(Nd) in time and never a d×d matrix for any row.

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
from ..geometry import AbstractGeometry, DenseGeometry
from .base import Setting

_WIDTH = 1.5


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


def lipschitz_weights(posterior: AbstractPosterior) -> Float[Array, " N"]:
    """L_i, the Lipschitz constants of the rows' gradients."""
    return _lipschitz(posterior)


def residual_weights(
    posterior: AbstractPosterior,
    anchor: Anchor,
    order: int,
    metric: AbstractGeometry,
    *,
    positions: Float[Array, "k d"] | None = None,
) -> Float[Array, " N"]:
    """√E‖Cᵀr_i(θ)‖² for control variates of this order, over these positions or, without any, the anchor's widened Gaussian.

    Without a Hessian in the anchor the metric stands for it.
    """
    _check_anchor(anchor)
    if positions is not None:
        return _residual_norms_at(posterior, order, anchor.position, positions, metric)
    given = anchor.factor
    same = isinstance(metric, DenseGeometry) and metric.factor is given
    spread = None if given is None or same else DenseGeometry(given)
    return _residual_norms(posterior, order, anchor.position, spread, metric)


def _check_anchor(anchor: Anchor) -> None:
    if not isinstance(anchor, Anchor):
        raise InvalidInput("anchor", "come from laplace(posterior)", type(anchor).__name__)


class WeightRule(NamedTuple):
    weigh: Callable[[Setting], Float[Array, " N"]]
    needs: Needs
    equation: str


def _by_anchor(weigh: Callable[[AbstractPosterior, Anchor], Float[Array, " N"]]) -> Callable[[Setting], Float[Array, " N"]]:
    def of_setting(setting: Setting) -> Float[Array, " N"]:
        assert setting.anchor is not None, "a method that needs an anchor is prepared with one"
        return weigh(setting.posterior, setting.anchor)

    return of_setting


def _by_residual(setting: Setting) -> Float[Array, " N"]:
    order = setting.order
    if order is None:
        rule = "be another with a gradient that has a memory: its residuals are not known ahead"
        raise InvalidInput("weights", rule, "residual", 'Use "frobenius" or "lipschitz".')
    return _by_anchor(lambda posterior, anchor: residual_weights(posterior, anchor, order, setting.geometry))(setting)


WEIGHT_RULES = {
    "gradient": WeightRule(_by_anchor(gradient_weights), Needs.MODE, "eq. 11"),
    "curvature": WeightRule(_by_anchor(curvature_weights), Needs.HESSIAN, "eq. 16"),
    "frobenius": WeightRule(_by_anchor(frobenius_weights), Needs.MODE, "p_i ∝ ‖H_i‖"),
    "lipschitz": WeightRule(lambda setting: lipschitz_weights(setting.posterior), Needs.NOTHING, "p_i ∝ L_i"),
    "residual": WeightRule(_by_residual, Needs.HESSIAN, "p_i ∝ √E‖Cᵀr_i‖²"),
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
def _residual_norms(
    posterior: AbstractPosterior,
    order: int,
    centre: Float[Array, " d"],
    spread: AbstractGeometry | None,
    metric: AbstractGeometry,
) -> Float[Array, " N"]:
    def block(rows):  # type: ignore[no-untyped-def]
        # Where the Gaussian is the metric's own, the same object says so to the compiler.
        around, width = metric if spread is None else spread, jnp.asarray(_WIDTH, posterior.dtype)
        return jnp.sqrt(posterior.gaussian_mean_square_remainders(order, centre, around, width, metric, rows))

    return map_rows(block, posterior.data, posterior.width)


@eqx.filter_jit
def _residual_norms_at(
    posterior: AbstractPosterior,
    order: int,
    centre: Float[Array, " d"],
    positions: Float[Array, "k d"],
    metric: AbstractGeometry,
) -> Float[Array, " N"]:
    def block(rows):  # type: ignore[no-untyped-def]
        return jnp.sqrt(posterior.mean_square_remainders(order, centre, positions, metric, rows))

    return map_rows(block, posterior.data, max(posterior.width, len(positions)))


@eqx.filter_jit
def _lipschitz(posterior: AbstractPosterior) -> Float[Array, " N"]:
    return posterior.lipschitz()
