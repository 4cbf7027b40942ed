"""Block pseudo-marginal Metropolis–Hastings with difference estimators of order 2. Approximate.

Quiroz, Kohn, Villani and Tran (2019), with the blocks of Tran, Kohn, Quiroz and Villani (2016) and
the proposals of `SubsampledMH`. Row i has f_i = T_i + R_i, its Taylor expansion at the anchor and
the remainder. The log-likelihood is estimated from m rows i_1, …, i_m, drawn with replacement with
probabilities p:

    ℓ̂(θ) = −Σ_i T_i(θ) − (1/m) Σ_j R_{i_j}(θ)/p_{i_j},   log ratio ∝ ℓ̂ − ½σ̂²

σ̂² estimates the variance σ² of ℓ̂. p is in proportion to the bounds c_i of `candidates.py`, with a
share of 1 % for equal probabilities. Models without bounds have equal probabilities. The rows are
part of the state of the chain. A proposal redraws one of G blocks of them, so successive estimates
have a correlation of about 1 − 1/G (`correlated.py`).

The draws have a bias that no step size removes. They are those of a perturbed posterior. Its
logarithm differs from that of the posterior by κ₃/(3m²) + O(m⁻³), where κ₃ is the third cumulant of
R_i/p_i, of the order of N^(−3/2). If m is so small that all draws may be of one row, the bias is
larger. Proposals far from the anchor are rejected (`correlated.py`). `potential_variance` of
`draws.sample_stats` is σ̂², which should be far below 1.

Cost: a pass over all rows for c_i. A step evaluates m rows at one position; G does not change this.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ...anchor.anchor import Anchor, AnchorLevel
from ...core.arrays import on_device
from ...core.errors import check_int
from ...dynamics.base import Curvature, Suggestion
from ...engine.kernel import BoundKernel
from ...geometry import Dense
from ...models.posterior import AbstractPosterior, check_posterior
from ...rows.stream import AbstractStream
from ...schedule import AbstractSchedule, as_schedule, in_precision
from ..account import Account
from ..base import (
    AbstractReadingMethod,
    PreparedMethod,
    check_row_access,
    prepare_anchor,
)
from .bounds import has_bounds
from .candidates import bound_rows
from .correlated import CorrelatedKernel
from .expansions import ExpansionRemainders
from .proposals import PROPOSALS, check_proposal
from .radius import radius_of
from .surrogate import Surrogate, prepare_surrogate

_EQUAL_SHARE = 0.01
"""Share of equal probabilities: no row that matters beyond the radius of its bound is too rare."""
_BIAS = "the bias by the estimated likelihood"
_STEP = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PseudoMarginal(AbstractReadingMethod):
    """Metropolis–Hastings with an estimate of the likelihood from a fixed number of rows.

    Approximate. For every model.

    **Arguments:**

    - `step_size`: the step size of the proposal, as in `SubsampledMH`.
    - `size`: m, the rows that estimate the likelihood, at least 2.
    - `blocks`: G; a proposal redraws about m/G of the rows. 1 redraws all of them.
    - `proposal`: "pcn", "langevin" or "random-walk", in the coordinates of the anchor's Gaussian.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.PseudoMarginal(step_size=1.0).exact
    False
    """

    step_size: float | AbstractSchedule
    size: int = 100
    blocks: int = 20
    proposal: str = "pcn"

    def __post_init__(self) -> None:
        check_proposal(self.proposal, self.step_size)
        check_int("size", self.size, 2)
        check_int("blocks", self.blocks, 1, self.size)

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.HESSIAN

    @property
    def exact(self) -> bool:
        return False

    @property
    def unseen_by_pairs(self) -> str:
        return _BIAS

    @property
    def axes(self) -> dict[str, str]:
        return {
            "dynamics": f"{self.proposal} proposals",
            "gradient": "surrogate of order 2",
            "subsample": "rows redrawn in blocks",
            "size": "fixed",
        }

    def suggest(self, curvature: Curvature) -> Suggestion:
        if self.proposal == "pcn":
            return Suggestion(1.0, "proposals that do not depend on the position", 1.0, 1.0)
        step = _STEP / curvature.dim
        return Suggestion(step, "the scaling of random walks", 2 / step, step)

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Find the anchor, and the probabilities of all rows."""
        check_posterior(posterior)
        check_row_access(self, posterior)
        anchor, n_row_evals = prepare_anchor(posterior, anchor, self.needs)
        assert anchor is not None, "the method requires an anchor"
        surrogate, stream, rows_of_bounds = _difference_estimator(posterior, anchor)
        kernel = CorrelatedKernel(
            surrogate=surrogate,
            proposal=PROPOSALS[self.proposal],
            stream=stream,
            size=self.size,
            block=-(-self.size // self.blocks),
            radius=on_device(radius_of(posterior.dim, bounded=False), posterior.dtype),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=anchor.position,
        )
        reason = f"{_BIAS} was not measured. Compare with a larger size, or with an exact method."
        return PreparedMethod(
            BoundKernel(kernel, posterior),
            anchor,
            n_row_evals + rows_of_bounds,
            Account(self, unmeasured=reason),
        )


def _difference_estimator(
    posterior: AbstractPosterior, anchor: Anchor
) -> tuple[Surrogate, AbstractStream, int]:
    """ΣT_i, the law of the rows, and how many rows were evaluated to find them."""
    rows = posterior.rows
    if has_bounds(posterior.model):
        bounded = bound_rows(posterior, anchor, 2)
        shares = (1 - _EQUAL_SHARE, _EQUAL_SHARE)
        p = rows.mixture((bounded.constants, np.ones(posterior.n_rows)), shares)
        return bounded.surrogate, rows.stream(p, posterior.dtype), bounded.n_row_evals
    metric = Dense().prepare(posterior, anchor)
    remainders = ExpansionRemainders(posterior.model, 2, anchor.position)
    surrogate, n_row_evals = prepare_surrogate(posterior, anchor, metric, remainders)
    return surrogate, rows.stream(None, posterior.dtype), n_row_evals
