"""Control variates: subtract each row's Taylor series around an anchor, add the known sum back.

    order 1   ∇f̂(θ) = ∇f(θ̂) + ∇f₀(θ) − ∇f₀(θ̂) + Σ_{i∈S} w_i [∇f_i(θ) − ∇f_i(θ̂)],
              w_i = 1/(n p_i)
    order 2   the same with u_i(θ) = ∇f_i(θ̂) + ∇²f_i(θ̂)(θ − θ̂) in place of ∇f_i(θ̂);
              the sum of the u_i is one d×d product

Order 1: Baker et al. (2019); with preferential weights, Putcha et al. (2023), eqs. 5 and 12. The
best weights are p_i ∝ ‖r_i(θ)‖ (eq. 14). Eq. 16 approximates them for order 1, and the weights
"residual" for both orders.

With a radius r, control variates near the anchor, simple gradients far from it (Fearnhead et al.,
2018):

    ∇f̂(θ) = the control-variate estimate   if ‖θ − θ̂‖_Σ̂ ≤ r,   ‖v‖²_Σ̂ = vᵀΣ̂⁻¹v
             the simple estimate             otherwise

The noise of control variates grows with the distance from θ̂ and exceeds that of the simple
estimator far away. nemeth-2021, section 2.3, therefore uses control variates only where θ is close
enough to θ̂, and leaves "close enough" to the user. Here it is r posterior standard deviations, by
the Laplace covariance Σ̂ = H⁻¹ at the anchor. The estimate is unbiased on both sides for any p > 0
and any r, because the choice depends on θ alone. The covariance of the noise jumps at the border.
‖θ − θ̂‖²_Σ̂ of a posterior draw is about d, so a radius well below √d turns control variates off at
most draws. Every step computes both estimates from the same rows, because chains that run side by
side may be on different sides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .._anchor.anchor import Anchor, AnchorLevel
from .._core.arrays import Vector, dot, on_device
from .._core.errors import InvalidInput, check_number
from .._rows.access import RowBlock
from .._rows.law import Batch
from ..models.posterior import AbstractPosterior
from .estimator import AbstractGradient, Indices, Residuals


class ControlVariate(AbstractGradient):
    """Control variates around the anchor.

    **Arguments:**

    - `order`: number of Taylor terms that are subtracted from each row's gradient, 1 or 2.
    - `radius`: control variates are used within this many posterior standard deviations of the
      anchor, simple gradients beyond. None uses control variates everywhere. A posterior draw is
      about √d standard deviations away.
    """

    paper = "Baker, Fearnhead, Fox and Nemeth (2019)"
    bias = (
        "Unbiased for any p > 0 and any anchor. The variance of the noise grows as ‖θ − θ̂‖² with "
        "order 1. With order 2 it grows as ‖θ − θ̂‖⁴, from a much lower level. Both orders help "
        "near the anchor and hurt far from it."
    )
    cost = (
        "The cost per row is O(d) for a GLM, and one directional derivative of the row's gradient "
        "for other models."
    )

    order: int = eqx.field(default=1, static=True)
    radius: float | None = None
    anchor: Any = eqx.field(default=None, repr=False, kw_only=True)  # θ̂
    known_at_anchor: Any = eqx.field(default=None, repr=False, kw_only=True)
    """∇f(θ̂) − ∇f₀(θ̂), the sum over all rows, with order 1; ∇f(θ̂) with order 2."""
    hessian: Any = eqx.field(default=None, repr=False, kw_only=True)  # ∇²f(θ̂), with order 2
    whitening: Any = eqx.field(default=None, repr=False, kw_only=True)
    """W with WᵀW = Σ̂⁻¹, with a radius."""

    def __post_init__(self) -> None:
        if self.order not in (1, 2):
            raise InvalidInput("order", "be 1 or 2", self.order)
        if self.radius is not None:
            check_number("radius", self.radius, 0, low_open=True)

    @property
    def needs(self) -> AnchorLevel:
        everywhere_first = self.order == 1 and self.radius is None
        return AnchorLevel.MODE if everywhere_first else AnchorLevel.HESSIAN

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None = None) -> Self:
        assert anchor is not None, "a method that needs an anchor is prepared with one"
        known = anchor.gradient
        if self.order == 1:
            known = anchor.gradient - posterior.model.prior_gradient(anchor.position)
        near = self._with(
            model=posterior.model,
            anchor=anchor.position,
            known_at_anchor=known,
            hessian=anchor.hessian if self.order == 2 else None,
        )
        if self.radius is None:
            return near
        whitening = np.linalg.inv(np.asarray(anchor.factor, np.float64))
        return near._with(
            whitening=on_device(whitening, posterior.dtype),
            radius=jnp.asarray(self.radius, posterior.dtype),
        )

    def known(self, position: Vector, carried: None = None) -> Vector:
        prior = self.model.prior_gradient
        if self.order == 1:
            return self._chosen(position, self.known_at_anchor + prior(position), prior)
        move = position - self.anchor
        at_anchor, change = jax.jvp(prior, (self.anchor,), (move,))
        prior_remainder = prior(position) - at_anchor - change
        near = self.known_at_anchor + dot(self.hessian, move) + prior_remainder
        return self._chosen(position, near, prior)

    def residuals(
        self, position: Vector, block: RowBlock, indices: Indices | None = None, carried: Any = None
    ) -> Residuals:
        near = self.model.remainders(self.order, position, self.anchor, block)
        return self._chosen(position, near, lambda at: self.model.row_gradients(at, block))

    def residual_sum(self, position: Vector, batch: Batch, carried: None = None) -> Vector:
        near = self.model.sum_remainders(self.order, position, self.anchor, batch)
        return self._chosen(position, near, lambda at: self.model.sum_remainders(0, at, at, batch))

    def is_near(self, position: Vector) -> Bool[Array, ""]:
        """‖θ − θ̂‖_Σ̂ ≤ r."""
        assert self.radius is not None, "without a radius all positions are near"
        return jnp.sum(dot(self.whitening, position - self.anchor) ** 2) <= self.radius**2

    def _chosen(self, position: Vector, near: Array, far: Callable[[Vector], Array]) -> Array:
        if self.radius is None:
            return near
        return jnp.where(self.is_near(position), near, far(position))
