"""The simple estimator (Welling and Teh): the prior's gradient and the weighted gradients of the rows drawn.

    ∇f̂(θ) = ∇f₀(θ) + Σ_{i∈S} w_i ∇f_i(θ),   w_i = 1/(n p_i)

Unbiased for any p > 0. Its noise is of order N²/n everywhere, at the mode too. Putcha et al. (2023), eqs. 3 and 8; the best
weights are p_i ∝ ‖∇f_i(θ)‖ (eq. 10).
"""

from __future__ import annotations

import dataclasses

from jaxtyping import Array, Float, PyTree

from .._anchor import Anchor, Needs
from .._posterior import AbstractPosterior
from .base import AbstractGradient, GradientChoice


class SimpleGradient(AbstractGradient):
    posterior: AbstractPosterior

    def known(self, position: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.posterior.prior_gradient(position)

    def residuals(self, position: Float[Array, " d"], rows: PyTree[Array]) -> Float[Array, "n ..."]:
        return self.posterior.row_gradients(position, rows)


@dataclasses.dataclass(frozen=True)
class Simple(GradientChoice):
    """Choose the simple estimator."""

    needs = Needs.NOTHING

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> SimpleGradient:
        return SimpleGradient(posterior)
