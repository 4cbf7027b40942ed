"""Control variates: subtract each row's Taylor series around an anchor, add the known sum back.

    order 1   ∇f̂(θ) = ∇f(θ̂) + ∇f₀(θ) − ∇f₀(θ̂) + Σ_{i∈S} w_i [∇f_i(θ) − ∇f_i(θ̂)],
              w_i = 1/(n p_i)
    order 2   the same with u_i(θ) = ∇f_i(θ̂) + ∇²f_i(θ̂)(θ − θ̂) in place of ∇f_i(θ̂);
              the sum of the u_i is one d×d product

Unbiased for any p > 0 and any anchor. The variance of the noise grows as ‖θ − θ̂‖² with order 1.
With order 2 it grows as ‖θ − θ̂‖⁴, from a much lower level. Both orders help near the anchor and
hurt far from it. The cost per row is O(d) for a GLM, and one directional derivative of the row's
gradient for other models.

Order 1: Baker et al. (2019); with preferential weights, Putcha et al. (2023), eqs. 5 and 12. The
best weights are p_i ∝ ‖r_i(θ)‖ (eq. 14). Eq. 16 approximates them for order 1, and the weights
"residual" for both orders. With a radius, control variates are used near the anchor only
(`within_radius.py`).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..anchor.anchor import Anchor, AnchorLevel
from ..core.arrays import on_device
from ..core.errors import InvalidInput, check_number
from ..core.linear_maps import dot
from ..models.base import AbstractModel
from ..models.posterior import AbstractPosterior
from ..rows.base import RowAccess, RowBlock
from ..rows.batch import Batch
from .base import AbstractMemoryless, GradientChoice
from .within_radius import WithinRadiusGradient


class AbstractControlVariate(AbstractMemoryless):
    """Each residual is a row's gradient minus its Taylor series around the anchor."""

    order: ClassVar[int]
    anchor: eqx.AbstractVar[Float[Array, " d"]]

    def residuals(
        self,
        position: Float[Array, " d"],
        rows: RowBlock,
        indices: Int[Array, " n"] | None = None,
        memory: None = None,
    ) -> Float[Array, "n ..."]:
        return self.model.remainders(self.order, position, self.anchor, rows)

    def residual_sum(
        self, position: Float[Array, " d"], batch: Batch, memory: None = None
    ) -> Float[Array, " d"]:
        return self.model.sum_remainders(self.order, position, self.anchor, batch)


class ControlVariateGradient(AbstractControlVariate):
    """Control variates of order 1.

    **Arguments:**

    - `model`: the model whose gradient is estimated.
    - `anchor`: θ̂.
    - `known_at_anchor`: ∇f(θ̂) − ∇f₀(θ̂), the sum over all rows.

    >>> import jax.numpy as jnp, tallmc
    >>> X, y = [[1.0], [1.0]], [1.0, 2.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> ControlVariateGradient(posterior.model, jnp.zeros(1), jnp.array([-3.0])).known(jnp.ones(1))
    Array([-2.], dtype=float32)
    """

    model: AbstractModel
    anchor: Float[Array, " d"]
    known_at_anchor: Float[Array, " d"]
    order = 1

    def known(self, position: Float[Array, " d"], memory: None = None) -> Float[Array, " d"]:
        return self.known_at_anchor + self.model.prior_gradient(position)


class SecondOrderGradient(AbstractControlVariate):
    """Control variates of order 2.

    **Arguments:**

    - `model`: the model whose gradient is estimated.
    - `anchor`: θ̂.
    - `gradient_at_anchor`: ∇f(θ̂).
    - `hessian`: ∇²f(θ̂).

    >>> import jax.numpy as jnp, tallmc
    >>> X, y = [[1.0], [1.0]], [1.0, 2.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> at_zero = (jnp.zeros(1), jnp.array([-3.0]), jnp.array([[3.0]]))
    >>> SecondOrderGradient(posterior.model, *at_zero).known(jnp.ones(1))
    Array([0.], dtype=float32)
    """

    model: AbstractModel
    anchor: Float[Array, " d"]
    gradient_at_anchor: Float[Array, " d"]
    hessian: Float[Array, "d d"]
    order = 2

    def known(self, position: Float[Array, " d"], memory: None = None) -> Float[Array, " d"]:
        move = position - self.anchor
        prior, prior_change = jax.jvp(self.model.prior_gradient, (self.anchor,), (move,))
        prior_remainder = self.model.prior_gradient(position) - prior - prior_change
        return self.gradient_at_anchor + dot(self.hessian, move) + prior_remainder


@dataclasses.dataclass(frozen=True)
class ControlVariate(GradientChoice):
    """Control variates around the anchor.

    **Arguments:**

    - `order`: number of Taylor terms that are subtracted from each row's gradient, 1 or 2.
    - `radius`: control variates are used within this many posterior standard deviations of the
      anchor, simple gradients beyond. None uses control variates everywhere. A posterior draw is
      about √d standard deviations away.

    **Raises:** `InvalidInput` if `order` is not 1 or 2, or if `radius` is not positive.

    >>> ControlVariate(order=2).needs.name
    'HESSIAN'
    """

    order: int = 1
    radius: float | None = None
    has_memory = False
    row_access = RowAccess.STREAM

    def __post_init__(self) -> None:
        if self.order not in (1, 2):
            raise InvalidInput("order", "be 1 or 2", self.order)
        if self.radius is not None:
            check_number("radius", self.radius, 0, low_open=True)

    @property
    def needs(self) -> AnchorLevel:
        everywhere_first = self.order == 1 and self.radius is None
        return AnchorLevel.MODE if everywhere_first else AnchorLevel.HESSIAN

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> AbstractMemoryless:
        assert anchor is not None, "a method that needs an anchor is prepared with one"
        near = self._everywhere(posterior, anchor)
        if self.radius is None:
            return near
        assert anchor.factor is not None, "a method that needs a Hessian is prepared with one"
        return WithinRadiusGradient(
            model=posterior.model,
            near=near,
            anchor=anchor.position,
            whitening=on_device(
                np.linalg.inv(np.asarray(anchor.factor, np.float64)), posterior.dtype
            ),
            radius=jnp.asarray(self.radius, posterior.dtype),
        )

    def _everywhere(self, posterior: AbstractPosterior, anchor: Anchor) -> AbstractControlVariate:
        """The estimator without a radius."""
        if self.order == 1:
            known = anchor.gradient - posterior.model.prior_gradient(anchor.position)
            return ControlVariateGradient(
                model=posterior.model, anchor=anchor.position, known_at_anchor=known
            )
        assert anchor.hessian is not None, "a method that needs a Hessian is prepared with one"
        return SecondOrderGradient(
            model=posterior.model,
            anchor=anchor.position,
            gradient_at_anchor=anchor.gradient,
            hessian=anchor.hessian,
        )
