"""The simple estimator (Welling and Teh): the prior's gradient plus weighted row gradients.

    ∇f̂(θ) = ∇f₀(θ) + Σ_{i∈S} w_i ∇f_i(θ),   w_i = 1/(n p_i)

Unbiased for any p > 0. Its noise is of order N²/n everywhere, including at the mode. Putcha et al.
(2023), eqs. 3 and 8. The best weights are p_i ∝ ‖∇f_i(θ)‖ (eq. 10).
"""

from __future__ import annotations

import dataclasses

from jaxtyping import Array, Float, Int

from ..anchor.anchor import Anchor, AnchorLevel
from ..models.base import AbstractModel
from ..models.posterior import AbstractPosterior
from ..rows.base import RowAccess, RowBlock
from ..rows.batch import Batch
from .base import AbstractMemoryless, GradientChoice


class SimpleGradient(AbstractMemoryless):
    """∇f₀(θ) + Σ w_i ∇f_i(θ).

    **Arguments:**

    - `model`: the model whose gradient is estimated.

    >>> import jax.numpy as jnp, tallmc
    >>> X, y = [[1.0], [1.0]], [1.0, 2.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> SimpleGradient(posterior.model)(jnp.zeros(1), Batch(posterior.data, jnp.ones(2)))
    Array([-3.], dtype=float32)
    """

    model: AbstractModel

    def known(self, position: Float[Array, " d"], memory: None = None) -> Float[Array, " d"]:
        return self.model.prior_gradient(position)

    def residuals(
        self,
        position: Float[Array, " d"],
        rows: RowBlock,
        indices: Int[Array, " n"] | None = None,
        memory: None = None,
    ) -> Float[Array, "n ..."]:
        return self.model.row_gradients(position, rows)

    def residual_sum(
        self, position: Float[Array, " d"], batch: Batch, memory: None = None
    ) -> Float[Array, " d"]:
        return self.model.sum_remainders(0, position, position, batch)


@dataclasses.dataclass(frozen=True)
class Simple(GradientChoice):
    """The simple estimator: no control variates and no memory.

    >>> Simple().needs.name
    'NOTHING'
    """

    needs = AnchorLevel.NOTHING
    order = 0
    has_memory = False
    row_access = RowAccess.STREAM

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> SimpleGradient:
        return SimpleGradient(posterior.model)
