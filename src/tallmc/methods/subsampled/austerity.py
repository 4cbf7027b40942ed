"""Austerity: Metropolis–Hastings whose accept step is a sequential test. Approximate.

Korattikara, Chen and Welling (2014), with the proposals of `SubsampledMH`. The paper tests the
log-likelihoods themselves, which is order 0. Remainders of a higher order have a smaller variance,
so the test needs fewer rows. With the mean D̄ of n rows and its standard error s,

    accept or reject as soon as P(t_{n−1} > |D̄ − μ₀|/s) < ε,   μ₀ = log(known ratio/uniform)/N

The draws are biased by the errors of the tests (`sequential.py`); the bias vanishes with ε, when
every step reads all rows. The cost of a step is at least one batch of rows, and at most all rows.
"""

from __future__ import annotations

import dataclasses

from ...anchor.anchor import Anchor, AnchorLevel
from ...core.errors import check_int, check_number
from ...dynamics.base import Curvature, Suggestion
from ...engine.kernel import BoundKernel
from ...geometry import Dense
from ...models.posterior import AbstractPosterior, check_posterior
from ...rows.base import RowAccess
from ...schedule import AbstractSchedule, as_schedule, in_precision
from ..account import Account
from ..base import AbstractMethod, PreparedMethod, RunDefaults, check_row_access, prepare_anchor
from .bounds import prepare_remainders
from .kernel import SubsampledKernel
from .proposals import PROPOSALS, check_proposal
from .sequential import SequentialDecision
from .surrogate import prepare_surrogate

_STEP = 2.0
_BIAS = "the bias by wrong decisions of the sequential tests"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Austerity(AbstractMethod):
    """Metropolis–Hastings that accepts by a sequential test; approximate.

    For logistic, probit, binomial, Poisson and linear regression.

    **Arguments:**

    - `step_size`: the step size of the proposal, as in `SubsampledMH`.
    - `epsilon`: the probability of an error at each look of a test, at least 0 and below 1/2. With
      0 every step reads all rows and is exact, apart from rounding.
    - `batch`: rows read between looks.
    - `proposal`: "random-walk", "langevin" or "pcn", in the coordinates of the anchor's Gaussian.
    - `order`: the order of the expansions that the rows are compared with, 0 to 3.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.Austerity(step_size=0.5).exact
    False
    """

    step_size: float | AbstractSchedule
    epsilon: float = 0.05
    batch: int = 500
    proposal: str = "random-walk"
    order: int = 0

    def __post_init__(self) -> None:
        check_proposal(self.proposal, self.step_size)
        check_number("epsilon", self.epsilon, 0, 0.5, high_open=True)
        check_int("batch", self.batch, 1)
        check_int("order", self.order, 0, 3)

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.HESSIAN

    @property
    def row_access(self) -> RowAccess:
        return RowAccess.TAKE

    def defaults(self, dim: int) -> RunDefaults:
        return RunDefaults(chains=4, draws=1000, ess=None)

    @property
    def has_accept_step(self) -> bool:
        return self.order == 0

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
            "gradient": f"surrogate of order {self.order}",
            "subsample": "sequential test",
            "size": "sequential",
        }

    def suggest(self, curvature: Curvature) -> Suggestion:
        step = _STEP / curvature.dim
        return Suggestion(step, "the scaling of random walks", 2 / step, step)

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Find the anchor, and the expansions of the rows there."""
        check_posterior(posterior)
        check_row_access(self, posterior)
        anchor, n_row_evals = prepare_anchor(posterior, anchor, self.needs)
        assert anchor is not None, "the method requires an anchor"
        metric = Dense().prepare(posterior, anchor)
        remainders, _ = prepare_remainders(posterior, anchor, metric, self.order)
        surrogate, rows_of_surrogate = prepare_surrogate(posterior, anchor, metric, remainders)
        batch = min(self.batch, posterior.n_rows)
        kernel = SubsampledKernel(
            surrogate=surrogate,
            proposal=PROPOSALS[self.proposal],
            decision=SequentialDecision.of(posterior.n_rows, batch, self.epsilon, posterior.dtype),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=anchor.position,
        )
        reason = f"{_BIAS} was not measured. Compare with subsampled_mh(...), which is exact."
        return PreparedMethod(
            BoundKernel(kernel, posterior),
            anchor,
            n_row_evals + rows_of_surrogate,
            Account(self, unmeasured=reason),
        )
