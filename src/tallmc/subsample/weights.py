"""Weights for preferential subsampling: the importance of each row for the noise of an estimator.

    gradient    ‖∇f_i(θ̂)‖                    for the simple estimator         putcha-2023, eq. 11
    curvature   √tr(∇²f_i(θ̂) Σ̂ ∇²f_i(θ̂)ᵀ)    for control variates             putcha-2023, eq. 16
    frobenius   ‖∇²f_i(θ̂)‖_F                 for control variates around a recent position
    lipschitz   L_i                          for any estimator, no anchor     Zhao and Zhang (2015)
    residual    √E‖Cᵀr_i(θ)‖²                for estimators without memory, in any metric

For "residual", r_i is the estimator's own residual, C is the geometry of the dynamics, and
θ ~ N(θ̂, 1.5² Σ̂). This law is wider than the posterior on purpose: rows that matter only in the
tails do harm if they are drawn rarely. The expectation is a one-dimensional quadrature for a GLM,
and uses random probes for other models (`gaussian_mean_square_remainders`). The quadrature takes
O(Nd²) time if Σ̂ or C is dense, the probes O(Nd). Neither needs a d×d matrix per row.

"gradient" is the state-dependent optimum (eq. 10) at the mode. "curvature" is the optimum of eq. 14
averaged over the Laplace approximation, and "frobenius" is the same for a centre that follows the
chain. Each rule is one pass over the rows, a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._anchor.anchor import Anchor, AnchorLevel
from .._core.arrays import AbstractLinearMap, DenseMap, Matrix, Vector
from .._core.errors import InvalidInput
from .._rows.access import RowBlock, RowValues
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior
from .selection import SubsampleContext

_WIDTH = 1.5  # standard deviation of θ for "residual", in posterior standard deviations


def gradient_weights(posterior: AbstractPosterior, anchor: Anchor) -> RowValues:
    """‖∇f_i(θ̂)‖, eq. 11.

    >>> import jax.numpy as jnp, tallmc
    >>> X, y = [[1.0], [2.0]], [1.0, 2.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> anchor = tallmc.anchor.find_anchor(posterior, at={"beta": jnp.zeros(1)}, hessian=False)
    >>> gradient_weights(posterior, anchor)
    Array([1., 4.], dtype=float32)
    """
    _check_anchor(anchor)
    return _per_row(posterior, _gradient_norms, anchor.position)


def curvature_weights(posterior: AbstractPosterior, anchor: Anchor) -> RowValues:
    """√tr(∇²f_i(θ̂) Σ̂ ∇²f_i(θ̂)ᵀ), eq. 16, without a d×d matrix per row."""
    _check_anchor(anchor)
    if anchor.factor is None:
        cure = "Use find_anchor(posterior, hessian=True)."
        raise InvalidInput("anchor", "have a Hessian for curvature weights", "none", cure)
    return _per_row(posterior, _curvature_norms, anchor.position, anchor.factor)


def frobenius_weights(posterior: AbstractPosterior, anchor: Anchor) -> RowValues:
    """‖∇²f_i(θ̂)‖_F, eq. 16 with Σ̂ ∝ I.

    These weights suit a centre from which the chain has walked equally far in all directions.
    """
    _check_anchor(anchor)
    identity = jnp.eye(posterior.dim, dtype=posterior.dtype)
    return _per_row(posterior, _curvature_norms, anchor.position, identity)


def lipschitz_weights(posterior: AbstractPosterior) -> RowValues:
    """L_i, the Lipschitz constants of the rows' gradients."""
    return posterior.lipschitz()


def residual_weights(
    posterior: AbstractPosterior,
    anchor: Anchor,
    order: int,
    metric: AbstractLinearMap,
    *,
    positions: Float[Array, "k d"] | None = None,
) -> RowValues:
    """√E‖Cᵀr_i(θ)‖² for control variates.

    **Arguments:**

    - `posterior`: the posterior.
    - `anchor`: the anchor from `find_anchor(posterior)`. If it has no Hessian, CCᵀ replaces Σ̂.
    - `order`: the order of the control variates.
    - `metric`: C.
    - `positions`: the positions θ to average over; by default θ ~ N(θ̂, 1.5² Σ̂).
    """
    _check_anchor(anchor)
    if positions is not None:
        return posterior.rows.map(
            _residual_norms_at,
            posterior.model,
            order,
            anchor.position,
            positions,
            metric,
            width=max(posterior.width, len(positions)),
        )
    factor = anchor.factor
    same = isinstance(metric, DenseMap) and metric.factor is factor
    spread = None if factor is None or same else DenseMap(factor)
    return _per_row(posterior, _residual_norms, order, anchor.position, spread, metric)


def _per_row(posterior: AbstractPosterior, norms: Callable[..., Array], *args: Any) -> RowValues:
    return posterior.rows.map(norms, posterior.model, *args, width=posterior.width)


def _check_anchor(anchor: Anchor) -> None:
    if not isinstance(anchor, Anchor):
        raise InvalidInput("anchor", "come from find_anchor(posterior)", type(anchor).__name__)


class WeightRule(NamedTuple):
    """A named rule for weights."""

    weigh: Callable[[SubsampleContext], RowValues]
    needs: AnchorLevel
    """What must be known about the posterior."""
    equation: str


def _anchored(context: SubsampleContext) -> tuple[AbstractPosterior, Anchor]:
    assert context.anchor is not None, "a method that needs an anchor is prepared with one"
    return context.posterior, context.anchor


def _from_residuals(context: SubsampleContext) -> RowValues:
    if context.order is None:
        rule = (
            "be another rule with a gradient that has a memory: its residuals are not known ahead"
        )
        raise InvalidInput("weights", rule, "residual", 'Use "frobenius" or "lipschitz".')
    return residual_weights(*_anchored(context), context.order, context.geometry)


WEIGHT_RULES = {
    "gradient": WeightRule(
        lambda context: gradient_weights(*_anchored(context)), AnchorLevel.MODE, "eq. 11"
    ),
    "curvature": WeightRule(
        lambda context: curvature_weights(*_anchored(context)), AnchorLevel.HESSIAN, "eq. 16"
    ),
    "frobenius": WeightRule(
        lambda context: frobenius_weights(*_anchored(context)), AnchorLevel.MODE, "p_i ∝ ‖H_i‖"
    ),
    "lipschitz": WeightRule(
        lambda context: lipschitz_weights(context.posterior), AnchorLevel.NOTHING, "p_i ∝ L_i"
    ),
    "residual": WeightRule(_from_residuals, AnchorLevel.HESSIAN, "p_i ∝ √E‖Cᵀr_i‖²"),
}


def _gradient_norms(block: RowBlock, model: AbstractModel, position: Vector) -> Float[Array, " n"]:
    return model.norms(model.row_gradients(position, block), block)


def _curvature_norms(
    block: RowBlock, model: AbstractModel, position: Vector, factor: Matrix
) -> Float[Array, " n"]:
    return model.curvature_norms(position, factor, block)


def _residual_norms(
    block: RowBlock,
    model: AbstractModel,
    order: int,
    centre: Vector,
    spread: AbstractLinearMap | None,
    metric: AbstractLinearMap,
) -> Float[Array, " n"]:
    # Passing the same object twice tells the compiler that the Gaussian's factor is the metric.
    around, width = metric if spread is None else spread, jnp.asarray(_WIDTH, model.dtype)
    squares = model.gaussian_mean_square_remainders(order, centre, around, width, metric, block)
    return jnp.sqrt(squares)


def _residual_norms_at(
    block: RowBlock,
    model: AbstractModel,
    order: int,
    centre: Vector,
    positions: Float[Array, "k d"],
    metric: AbstractLinearMap,
) -> Float[Array, " n"]:
    return jnp.sqrt(model.mean_square_remainders(order, centre, positions, metric, block))
