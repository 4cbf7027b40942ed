"""Control variates: subtract each row's gradient at an anchor, add their known sum back.

    ∇f̂(θ) = ∇f(θ̂) + ∇f₀(θ) − ∇f₀(θ̂) + Σ_{i∈S} w_i [∇f_i(θ) − ∇f_i(θ̂)],   w_i = 1/(n p_i)

Unbiased for any p > 0 and any anchor. Its noise grows as ‖θ − θ̂‖², so it helps near the anchor and hurts far from it.
Baker et al. (2019); with preferential weights, Putcha et al. (2023), eqs. 5 and 12; the best weights are
p_i ∝ ‖∇f_i(θ) − ∇f_i(θ̂)‖ (eq. 14), which eq. 16 approximates without looking at the state.
"""

from __future__ import annotations

import dataclasses

from jaxtyping import Array, Float, Int, PyTree

from .._anchor import Anchor, Needs
from .._posterior import AbstractPosterior
from .base import AbstractMemoryless, GradientChoice


class ControlVariateGradient(AbstractMemoryless):
    posterior: AbstractPosterior
    anchor: Float[Array, " d"]
    known_at_anchor: Float[Array, " d"]
    """∇f(θ̂) − ∇f₀(θ̂): the sum over all rows."""

    def known(self, position: Float[Array, " d"], memory: None = None) -> Float[Array, " d"]:
        return self.known_at_anchor + self.posterior.prior_gradient(position)

    def residuals(
        self, position: Float[Array, " d"], rows: PyTree[Array], indices: Int[Array, " n"] | None = None, memory: None = None
    ) -> Float[Array, "n ..."]:
        return self.posterior.row_gradients(position, rows) - self.posterior.row_gradients(self.anchor, rows)


@dataclasses.dataclass(frozen=True)
class ControlVariate(GradientChoice):
    """Choose control variates of order 1 around the anchor."""

    needs = Needs.MODE
    has_memory = False

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> ControlVariateGradient:
        assert anchor is not None, "a method that needs an anchor is prepared with one"
        known = anchor.gradient - posterior.prior_gradient(anchor.position)
        return ControlVariateGradient(posterior, anchor.position, known)
