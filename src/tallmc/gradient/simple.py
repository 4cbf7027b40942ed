"""The simple estimator (Welling and Teh): the prior's gradient and the weighted gradients of the rows drawn.

    ∇f̂(θ) = ∇f₀(θ) + Σ_{i∈S} w_i ∇f_i(θ),   w_i = 1/(n p_i)

Unbiased for any p > 0. Its noise is of order N²/n everywhere, at the mode too. Putcha et al. (2023), eqs. 3 and 8; the best
weights are p_i ∝ ‖∇f_i(θ)‖ (eq. 10).
"""

from __future__ import annotations

import dataclasses

from jaxtyping import Array, Float, Int, PyTree

from .._anchor import Anchor, Needs
from .._posterior import AbstractPosterior
from .base import AbstractMemoryless, Batch, GradientChoice


class SimpleGradient(AbstractMemoryless):
    posterior: AbstractPosterior

    def known(self, position: Float[Array, " d"], memory: None = None) -> Float[Array, " d"]:
        return self.posterior.prior_gradient(position)

    def residuals(
        self, position: Float[Array, " d"], rows: PyTree[Array], indices: Int[Array, " n"] | None = None, memory: None = None
    ) -> Float[Array, "n ..."]:
        return self.posterior.row_gradients(position, rows)

    def residual_sum(self, position: Float[Array, " d"], batch: Batch, memory: None = None) -> Float[Array, " d"]:
        return self.posterior.sum_remainders(0, position, position, batch.rows, batch.weights, batch.indices)


@dataclasses.dataclass(frozen=True)
class Simple(GradientChoice):
    """Choose the simple estimator."""

    needs = Needs.NOTHING
    order = 0
    has_memory = False

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> SimpleGradient:
        return SimpleGradient(posterior)
