"""Control variates near the anchor, simple gradients far from it (Fearnhead et al., 2018).

    ∇f̂(θ) = the control-variate estimate   if ‖θ − θ̂‖_Σ̂ ≤ r,   ‖v‖²_Σ̂ = vᵀΣ̂⁻¹v
             the simple estimate             otherwise

The noise of control variates grows with the distance from θ̂ and exceeds that of the simple
estimator far away. nemeth-2021, section 2.3, therefore uses control variates only where θ is close
enough to θ̂, and leaves "close enough" to the user. Here it is r posterior standard deviations, by
the Laplace covariance Σ̂ = H⁻¹ at the anchor.

Unbiased on both sides for any p > 0 and any r, because each estimator is and the choice depends on
θ alone. The covariance of the noise jumps at the border. ‖θ − θ̂‖²_Σ̂ of a posterior draw is about
d, so a radius well below √d turns control variates off at most draws. Every step computes both
estimates from the same rows, because chains that run side by side may be on different sides.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..core.linear_maps import dot
from ..models.base import AbstractModel
from ..rows.base import RowBlock
from ..rows.batch import Batch
from .base import AbstractMemoryless
from .simple import SimpleGradient


class WithinRadiusGradient(AbstractMemoryless):
    """One estimator within a radius of the anchor, the simple estimator beyond.

    **Arguments:**

    - `model`: the model whose gradient is estimated.
    - `near`: the estimator within the radius.
    - `anchor`: θ̂.
    - `whitening`: W with WᵀW = Σ̂⁻¹.
    - `radius`: r, in posterior standard deviations.

    >>> import jax.numpy as jnp, tallmc
    >>> X, y = [[1.0], [1.0]], [1.0, 2.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> choice = tallmc.gradient.ControlVariate(radius=2.0)       # the mode is 1, the sd 1/√3
    >>> choice.prepare(posterior, tallmc.laplace(posterior)).is_near(jnp.array([2.1]))
    Array(True, dtype=bool)
    """

    model: AbstractModel
    near: AbstractMemoryless
    anchor: Float[Array, " d"]
    whitening: Float[Array, "d d"]
    radius: Float[Array, ""]

    @property
    def far(self) -> SimpleGradient:
        """The estimator beyond the radius."""
        return SimpleGradient(self.model)

    def is_near(self, position: Float[Array, " d"]) -> Bool[Array, ""]:
        """‖θ − θ̂‖_Σ̂ ≤ r."""
        return jnp.sum(dot(self.whitening, position - self.anchor) ** 2) <= self.radius**2

    def known(self, position: Float[Array, " d"], memory: None = None) -> Float[Array, " d"]:
        near, far = self.near.known(position, memory), self.far.known(position)
        return jnp.where(self.is_near(position), near, far)

    def residuals(
        self,
        position: Float[Array, " d"],
        rows: RowBlock,
        indices: Int[Array, " n"] | None = None,
        memory: None = None,
    ) -> Float[Array, "n ..."]:
        near = self.near.residuals(position, rows, indices, memory)
        return jnp.where(self.is_near(position), near, self.far.residuals(position, rows))

    def residual_sum(
        self, position: Float[Array, " d"], batch: Batch, memory: None = None
    ) -> Float[Array, " d"]:
        near = self.near.residual_sum(position, batch, memory)
        return jnp.where(self.is_near(position), near, self.far.residual_sum(position, batch))
