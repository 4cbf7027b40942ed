"""Preferential subsampling: important rows are drawn more often, by one of several weights.

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

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._anchor.anchor import Anchor, AnchorLevel
from .._core.arrays import AbstractLinearMap, DenseMap, Matrix, Vector
from .._core.errors import InvalidInput, check_number
from .._rows.access import RowAccess, RowBlock, RowValues
from .._rows.values import ShardedValues
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior
from .selection import AbstractSelection, SizeChoice, SubsampleChoice, SubsampleContext

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


def residual_weights(
    posterior: AbstractPosterior, anchor: Anchor, order: int, metric: AbstractLinearMap
) -> RowValues:
    """√E‖Cᵀr_i(θ)‖² over θ ~ N(θ̂, 1.5² Σ̂), for control variates.

    **Arguments:**

    - `anchor`: the anchor from `find_anchor(posterior)`. If it has no Hessian, CCᵀ replaces Σ̂.
    - `order`: the order of the control variates.
    - `metric`: C.
    """
    _check_anchor(anchor)
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
    needs: AnchorLevel  # What must be known about the posterior


def _anchored(context: SubsampleContext) -> tuple[AbstractPosterior, Anchor]:
    assert context.anchor is not None, "a method that needs an anchor is prepared with one"
    return context.posterior, context.anchor


def _frobenius_norms(context: SubsampleContext) -> RowValues:
    """Eq. 16 with Σ̂ ∝ I, as for a centre that the chain leaves equally far in all directions."""
    posterior, anchor = _anchored(context)
    identity = jnp.eye(posterior.dim, dtype=posterior.dtype)
    return _per_row(posterior, _curvature_norms, anchor.position, identity)


def _from_residuals(context: SubsampleContext) -> RowValues:
    if context.order is None:
        rule = (
            "be another rule with a gradient that has a memory: its residuals are not known ahead"
        )
        raise InvalidInput("weights", rule, "residual", 'Use "frobenius" or "lipschitz".')
    return residual_weights(*_anchored(context), context.order, context.geometry)


WEIGHT_RULES = {
    "gradient": WeightRule(lambda context: gradient_weights(*_anchored(context)), AnchorLevel.MODE),
    "curvature": WeightRule(
        lambda context: curvature_weights(*_anchored(context)), AnchorLevel.HESSIAN
    ),
    "frobenius": WeightRule(_frobenius_norms, AnchorLevel.MODE),
    "lipschitz": WeightRule(lambda context: context.posterior.lipschitz(), AnchorLevel.NOTHING),
    "residual": WeightRule(_from_residuals, AnchorLevel.HESSIAN),
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


@dataclasses.dataclass(frozen=True, eq=False)
class Preferential(SubsampleChoice):
    """Fixed weights: rows are drawn with replacement in proportion to their weights.

        i ~ p,   w_i = 1/(n p_i)   Putcha, Nemeth and Fearnhead (2023), eqs. 8, 12

    The noise is least for p_i ∝ ‖r_i(θ)‖, r_i the estimator's residual. The named weights
    approximate this law and do not depend on the state.

    **Arguments:**

    - `weights`: "residual" (for estimators without memory, in the metric of the geometry),
      "gradient" (eq. 11), "curvature" (eq. 16), "frobenius", "lipschitz", or an array with one
      non-negative number per row; also what `rows.map` returned.
    - `floor`: the share of uniform weights, p ← (1 − floor) p + floor/N. With a floor > 0,
      every row can be drawn, and no importance weight 1/(N p_i) exceeds 1/floor.
    - `take_all`: whether rows with an expected count of at least one per step are in every step.
    """

    paper = "Putcha, Nemeth and Fearnhead (2023)"
    bias = "Unbiased for any p > 0."
    cost = "A draw from rows in memory is O(1), through an alias table."
    row_access = RowAccess.STREAM

    weights: Any = "curvature"
    floor: float = 0.05
    take_all: bool = False

    def __post_init__(self) -> None:
        check_number("floor", self.floor, 0, 1)
        if not isinstance(self.take_all, bool):
            raise InvalidInput("take_all", "be True or False", self.take_all)
        if isinstance(self.weights, str) and self.weights not in WEIGHT_RULES:
            rule = f"be one of {', '.join(WEIGHT_RULES)}, or an array with one weight per row"
            raise InvalidInput("weights", rule, self.weights)

    @property
    def needs(self) -> AnchorLevel:
        named = isinstance(self.weights, str)
        return WEIGHT_RULES[self.weights].needs if named else AnchorLevel.NOTHING

    @property
    def passes(self) -> int:
        return 1 if isinstance(self.weights, str) else 0

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> AbstractSelection:
        assert size is not None, "a preferential subsample requires a size"
        if self.take_all and size.size is None:
            rule = (
                "be known ahead with take_all, "
                "which puts rows expected at least once per step into every step"
            )
            cure = "Pass a number of rows or TargetNoise(...)."
            raise InvalidInput("batch_size", rule, size, cure)
        posterior = context.posterior
        stream, certain = posterior.rows.preferential_stream(
            self._raw_weights(context),
            floor=self.floor,
            certain_of=size.size if self.take_all else None,
            dtype=posterior.dtype,
        )
        return size.select(stream, context, certain)

    def _raw_weights(self, context: SubsampleContext) -> Any:
        if isinstance(self.weights, str):
            return WEIGHT_RULES[self.weights].weigh(context)
        if isinstance(self.weights, ShardedValues):
            return self.weights
        given, n_rows = np.asarray(self.weights), context.posterior.n_rows
        if given.shape != (n_rows,) or not np.issubdtype(given.dtype, np.number):
            rule = f"be numbers, one per row ({n_rows})"
            found = f"an array of shape {given.shape} and dtype {given.dtype}"
            raise InvalidInput("weights", rule, found)
        return given
