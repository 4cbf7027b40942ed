"""SVRG: control variates around a centre that is moved to the chain every m steps.

    ∇f̂(θ) = Σ_i ∇f_i(θ̃) + ∇f₀(θ) + Σ_{i∈S} w_i [∇f_i(θ) − ∇f_i(θ̃)]

θ̃ is the position at the last step whose number is divisible by m. SVRG needs no mode. The
noise grows with the distance from the centre. Johnson and Zhang (2013); for Langevin dynamics,
Dubey et al. (2016).

Preferential weights: the argument of putcha-2023, Lemma 3.2, holds with the current centre as the
anchor, so the best weights are p_i ∝ ‖∇f_i(θ) − ∇f_i(θ̃)‖ ≈ ‖H_i(θ − θ̃)‖. Averaged over the walk
since the renewal they are p_i ∝ √tr(H_i S H_iᵀ), with S the covariance of the walk. A walk much
longer than the chain's autocorrelation time has S = 2Σ̂, which gives the "curvature" weights of
eq. 16. A short walk has S ∝ I, which gives the "frobenius" weights ‖H_i‖.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from .._core.arrays import Vector
from .._core.errors import check_int
from .._rows.access import AbstractRows, RowBlock
from .estimator import AbstractGradient, Indices, Positions, Residuals, row_gradient_sums


class Centre(eqx.Module):
    """The centre of one chain: its position at the last renewal."""

    position: Float[Array, "*chains d"]  # θ̃
    row_sum: Float[Array, "*chains d"]  # Σ_i ∇f_i(θ̃) over all rows


class SVRG(AbstractGradient):
    """Control variates around a centre that is moved to the chain every m steps, `every`."""

    paper = "Dubey, Reddi, Williamson, Póczos, Smola and Xing (2016)"
    bias = "Unbiased given the past."
    cost = "Each renewal of the centre takes a pass over all rows, which `n_row_evals` includes."
    order = None
    has_memory = True

    every: int = eqx.field(static=True)

    def __post_init__(self) -> None:
        check_int("every", self.every, 1)

    @property
    def renewed_every(self) -> int:
        return self.every

    def start(self, positions: Positions, rows: AbstractRows) -> Centre:
        return Centre(positions, row_gradient_sums(self.model, positions, rows))

    def renew(self, carried: Centre, positions: Positions, row_sums: Positions) -> Centre:
        return Centre(positions, row_sums)

    def known(self, position: Vector, carried: Any = None) -> Vector:
        return carried.row_sum + self.model.prior_gradient(position)

    def residuals(
        self, position: Vector, block: RowBlock, indices: Indices | None = None, carried: Any = None
    ) -> Residuals:
        here = self.model.row_gradients(position, block)
        return here - self.model.row_gradients(carried.position, block)
