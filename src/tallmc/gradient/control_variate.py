"""Control variates: subtract from each row's gradient what its Taylor series around an anchor says, add the known sum back.

    order 1   ∇f̂(θ) = ∇f(θ̂) + ∇f₀(θ) − ∇f₀(θ̂) + Σ_{i∈S} w_i [∇f_i(θ) − ∇f_i(θ̂)],   w_i = 1/(n p_i)
    order 2   the same with u_i(θ) = ∇f_i(θ̂) + ∇²f_i(θ̂)(θ − θ̂) in place of ∇f_i(θ̂), whose sum is one d×d product

Unbiased for any p > 0 and any anchor. The noise's variance grows as ‖θ − θ̂‖² with order 1, and as ‖θ − θ̂‖⁴ with order 2 from a
much lower level: both help near the anchor and hurt far from it. A row takes O(d) for a GLM, one directional derivative of its
gradient for other models. Order 1: Baker et al. (2019); with preferential weights Putcha et al. (2023), eqs. 5 and 12; the best
weights are p_i ∝ ‖r_i(θ)‖ (eq. 14), which eq. 16 approximates for order 1 and the weights "residual" for both.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int, PyTree

from .._anchor import Anchor, Needs
from .._errors import InvalidInput
from .._posterior import AbstractPosterior
from .._rows import dot
from .base import AbstractMemoryless, Batch, GradientChoice


class AbstractControlVariate(AbstractMemoryless):
    order: ClassVar[int]
    anchor: eqx.AbstractVar[Float[Array, " d"]]

    def residuals(
        self, position: Float[Array, " d"], rows: PyTree[Array], indices: Int[Array, " n"] | None = None, memory: None = None
    ) -> Float[Array, "n ..."]:
        return self.posterior.remainders(self.order, position, self.anchor, rows)

    def residual_sum(self, position: Float[Array, " d"], batch: Batch, memory: None = None) -> Float[Array, " d"]:
        return self.posterior.sum_remainders(self.order, position, self.anchor, batch.rows, batch.weights, batch.indices)


class ControlVariateGradient(AbstractControlVariate):
    posterior: AbstractPosterior
    anchor: Float[Array, " d"]
    known_at_anchor: Float[Array, " d"]
    """∇f(θ̂) − ∇f₀(θ̂): the sum over all rows."""
    order = 1

    def known(self, position: Float[Array, " d"], memory: None = None) -> Float[Array, " d"]:
        return self.known_at_anchor + self.posterior.prior_gradient(position)


class SecondOrderGradient(AbstractControlVariate):
    posterior: AbstractPosterior
    anchor: Float[Array, " d"]
    gradient_at_anchor: Float[Array, " d"]
    hessian: Float[Array, "d d"]
    order = 2

    def known(self, position: Float[Array, " d"], memory: None = None) -> Float[Array, " d"]:
        move = position - self.anchor
        prior, prior_change = jax.jvp(self.posterior.prior_gradient, (self.anchor,), (move,))
        prior_remainder = self.posterior.prior_gradient(position) - prior - prior_change
        return self.gradient_at_anchor + dot(self.hessian, move) + prior_remainder


@dataclasses.dataclass(frozen=True)
class ControlVariate(GradientChoice):
    """Choose control variates around the anchor, of order 1 or 2.

    >>> ControlVariate(order=2).needs.name
    'HESSIAN'
    """

    order: int = 1
    has_memory = False

    def __post_init__(self) -> None:
        if self.order not in (1, 2):
            raise InvalidInput("order", "be 1 or 2", self.order)

    @property
    def needs(self) -> Needs:
        return Needs.MODE if self.order == 1 else Needs.HESSIAN

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> AbstractControlVariate:
        assert anchor is not None, "a method that needs an anchor is prepared with one"
        if self.order == 1:
            known = anchor.gradient - posterior.prior_gradient(anchor.position)
            return ControlVariateGradient(posterior=posterior, anchor=anchor.position, known_at_anchor=known)
        assert anchor.hessian is not None, "a method that needs a Hessian is prepared with one"
        return SecondOrderGradient(
            posterior=posterior, anchor=anchor.position, gradient_at_anchor=anchor.gradient, hessian=anchor.hessian
        )
