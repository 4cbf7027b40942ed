"""SVRG: control variates around a centre that is moved to the chain every m steps.

    ∇f̂(θ) = Σ_i ∇f_i(θ̃) + ∇f₀(θ) + Σ_{i∈S} w_i [∇f_i(θ) − ∇f_i(θ̃)]

θ̃ is the position at the last step whose number is divisible by m. Unbiased given the past. SVRG
needs no mode. Each renewal of the centre takes a pass over all rows, which `n_row_evals` includes.
The noise grows with the distance from the centre. Johnson and Zhang (2013); for Langevin dynamics,
Dubey et al. (2016).

Preferential weights: the argument of putcha-2023, Lemma 3.2, holds with the current centre as the
anchor, so the best weights are p_i ∝ ‖∇f_i(θ) − ∇f_i(θ̃)‖ ≈ ‖H_i(θ − θ̃)‖. Averaged over the walk
since the renewal they are p_i ∝ √tr(H_i S H_iᵀ), with S the covariance of the walk. A walk much
longer than the chain's autocorrelation time has S = 2Σ̂, which gives the "curvature" weights of
eq. 16. A short walk has S ∝ I, which gives the "frobenius" weights ‖H_i‖.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
from jaxtyping import Array, Float, Int

from ..anchor.anchor import Anchor, AnchorLevel
from ..core.errors import check_int
from ..models.base import AbstractModel
from ..models.posterior import AbstractPosterior
from ..rows.base import AbstractRows, RowAccess, RowBlock
from ..rows.batch import Batch
from .base import AbstractGradient, GradientChoice, combined_residuals
from .renewal import AbstractPeriodic
from .row_sums import row_gradient_sums


class Centre(eqx.Module):
    """The centre of one chain: its position at the last renewal."""

    position: Float[Array, "*chains d"]
    """θ̃."""
    row_sum: Float[Array, "*chains d"]
    """Σ_i ∇f_i(θ̃) over all rows."""


class SvrgGradient(AbstractGradient, AbstractPeriodic):
    """Control variates around a centre, one centre per chain.

    **Arguments:**

    - `model`: the model whose gradient is estimated.
    - `every`: m, the number of steps between renewals of the centre.

    >>> import numpy as np, tallmc
    >>> X, y = [[1.0], [1.0]], [1.0, 2.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> SvrgGradient(model=posterior.model, every=10).passes_before(np.array([10, 11]))
    array([1, 2])
    """

    model: AbstractModel
    every: int = eqx.field(static=True)

    def start(self, positions: Float[Array, "chains d"], source: AbstractRows) -> Centre:
        return Centre(positions, row_gradient_sums(self.model, positions, source))

    def renew(
        self,
        memory: Centre,
        positions: Float[Array, "chains d"],
        row_sums: Float[Array, "chains d"],
    ) -> Centre:
        return Centre(positions, row_sums)

    def known(self, position: Float[Array, " d"], memory: Centre) -> Float[Array, " d"]:
        return memory.row_sum + self.model.prior_gradient(position)

    def residuals(
        self,
        position: Float[Array, " d"],
        rows: RowBlock,
        indices: Int[Array, " n"] | None,
        memory: Centre,
    ) -> Float[Array, "n ..."]:
        return self.model.row_gradients(position, rows) - self.model.row_gradients(
            memory.position, rows
        )

    def residual_sum(
        self, position: Float[Array, " d"], batch: Batch, memory: Centre
    ) -> Float[Array, " d"]:
        return combined_residuals(self, position, batch, memory)

    def learn(self, memory: Centre, batch: Batch, residuals: Float[Array, "n ..."]) -> Centre:
        return memory


@dataclasses.dataclass(frozen=True)
class SVRG(GradientChoice):
    """Control variates around a centre that is moved to the chain every `every` steps.

    Each renewal of the centre costs a pass over all rows.

    **Arguments:**

    - `every`: m, the number of steps between renewals of the centre.

    **Raises:** `InvalidInput` if `every` is not an int of at least 1.

    >>> SVRG(every=1000).has_memory
    True
    """

    every: int
    needs = AnchorLevel.NOTHING
    order = None
    has_memory = True
    row_access = RowAccess.STREAM

    def __post_init__(self) -> None:
        check_int("every", self.every, 1)

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> SvrgGradient:
        return SvrgGradient(model=posterior.model, every=self.every)
