"""SVRG: control variates around a centre that follows the chain, renewed every m steps.

    ∇f̂(θ) = Σ_i ∇f_i(θ̃) + ∇f₀(θ) + Σ_{i∈S} w_i [∇f_i(θ) − ∇f_i(θ̃)],   θ̃ the position at the last step divisible by m

Unbiased given the past. No mode is needed; each renewal is a pass over all rows, and is counted. The noise grows with the
distance walked since. Johnson and Zhang (2013); for Langevin dynamics, Dubey et al. (2016).

Preferential weights: the argument of putcha-2023, Lemma 3.2, holds with the current centre for the anchor, so the best weights
are p_i ∝ ‖∇f_i(θ) − ∇f_i(θ̃)‖ ≈ ‖H_i(θ − θ̃)‖ and, averaged over the walk since the renewal, p_i ∝ √tr(H_i S H_iᵀ) with S its
covariance. A walk much longer than the chain's memory has S = 2Σ̂, which gives the "curvature" weights of eq. 16; a short one has
S ∝ I, which gives the "frobenius" weights ‖H_i‖.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from .._anchor import Anchor, Needs
from .._errors import check_int
from .._posterior import AbstractPosterior
from .base import AbstractGradient, Batch, GradientChoice


class Centre(eqx.Module):
    position: Float[Array, " d"]
    row_sum: Float[Array, " d"]
    """Σ_i ∇f_i(θ̃) over all rows."""


class SvrgGradient(AbstractGradient):
    posterior: AbstractPosterior
    every: int = eqx.field(static=True)

    def start(self, position: Float[Array, " d"]) -> Centre:
        gradient = self.posterior.potential_and_gradient_sum(position).rounded()[1]
        return Centre(position, gradient - self.posterior.prior_gradient(position))

    def refresh(self, memory: Centre, position: Float[Array, " d"], step: Int[Array, ""]) -> Centre:
        # The condition is the same for all chains, so that only the steps that need a pass pay for one.
        return lax.cond((step > 0) & (step % self.every == 0), lambda: self.start(position), lambda: memory)

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.maximum(1, -(-step // self.every))

    def known(self, position: Float[Array, " d"], memory: Centre) -> Float[Array, " d"]:
        return memory.row_sum + self.posterior.prior_gradient(position)

    def residuals(
        self, position: Float[Array, " d"], rows: PyTree[Array], indices: Int[Array, " n"] | None, memory: Centre
    ) -> Float[Array, "n ..."]:
        return self.posterior.row_gradients(position, rows) - self.posterior.row_gradients(memory.position, rows)

    def learn(self, memory: Centre, batch: Batch, residuals: Float[Array, "n ..."]) -> Centre:
        return memory


@dataclasses.dataclass(frozen=True)
class SVRG(GradientChoice):
    """Choose control variates around a centre that is moved to the chain `every` so many steps, at the cost of a pass."""

    every: int
    needs = Needs.NOTHING
    order = None
    has_memory = True

    def __post_init__(self) -> None:
        check_int("every", self.every, 1)

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> SvrgGradient:
        return SvrgGradient(posterior=posterior, every=self.every)
