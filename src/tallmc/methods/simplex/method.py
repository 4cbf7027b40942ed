"""Draws of points on simplices from the counts of a few rows per step: SGRLD and SCIR.

Every step draws n rows, estimates the counts of all N rows with the weights of the subsample, and
moves θ, whose normalised rows are the points (`transitions.py`):

    n̂ = Σ_{i∈S} w_i E[n_i | w],   "cir": θ' = c·Gamma(α + n̂ + J, 1),   J ~ Poisson(θe^{−ε/2}/c)
    c = 1 − e^{−ε/2},   "expanded mean": θ' = |θ + (ε/2)(α − θ + n̂ − n̂.θ/θ.) + √(εθ) η|

SCIR has no error of discretisation; Baker, Fearnhead, Fox and Nemeth (2018). Its only bias comes
from subsampling: variances of θ are inflated by Var(n̂) tanh(ε/4), about (N/n)(ε/4) relative to
their size for rows of one count each. SGRLD, Patterson and Teh (2013), has this bias too, and one
of discretisation that is large for components close to zero.

The cost of a step is n rows and one or two random variables per component.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ...anchor.anchor import Anchor, AnchorLevel
from ...core.errors import InvalidInput, check_int
from ...dynamics.base import Curvature
from ...engine.kernel import BoundKernel
from ...models.counts import AbstractCountsModel
from ...models.posterior import AbstractPosterior, check_posterior
from ...schedule import as_schedule, in_precision
from ...subsample import Fixed, SubsampleChoice, Uniform
from ...subsample.base import SubsampleContext
from ...subsample.selection import AbstractStaticSelection
from ..base import AbstractReadingMethod, PreparedMethod, check_row_access
from .kernel import SimplexKernel
from .transitions import AbstractGammaTransition, CoxIngersollRoss, ExpandedMean

_TRANSITIONS: dict[str, type[AbstractGammaTransition]] = {
    "cir": CoxIngersollRoss,
    "expanded mean": ExpandedMean,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimplexSampler(AbstractReadingMethod):
    """SCIR or SGRLD for models of counts; not exact with fewer rows than all.

    **Arguments:**

    - `step_size`: ε, a number or a schedule.
    - `size`: n, the rows per step.
    - `transition`: "cir" for SCIR, or "expanded mean" for SGRLD.
    - `subsample`: which rows a step sees: `Uniform(...)`, or `Preferential(weights)` with a number
      per row, such as the lengths of documents.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.SimplexSampler(step_size=0.1, size=10).axes["dynamics"]
    'cir'
    """

    step_size: Any
    size: int
    transition: str = "cir"
    subsample: SubsampleChoice = dataclasses.field(default_factory=lambda: Uniform(replace=False))

    def __post_init__(self) -> None:
        as_schedule(self.step_size)
        check_int("size", self.size, 1)
        if self.transition not in _TRANSITIONS:
            raise InvalidInput(
                "transition", f"be one of {', '.join(_TRANSITIONS)}", self.transition
            )
        if not isinstance(self.subsample, SubsampleChoice):
            raise InvalidInput("subsample", "be a subsample of tallmc.subsample", self.subsample)

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.NOTHING

    @property
    def exact(self) -> bool:
        return False

    @property
    def unseen_by_pairs(self) -> str:
        return "the bias of expected counts from a few Gibbs sweeps"

    @property
    def axes(self) -> dict[str, str]:
        return {
            "dynamics": self.transition,
            "gradient": "expected counts",
            "subsample": type(self.subsample).__name__,
            "size": "fixed",
        }

    def suggest(self, curvature: Curvature) -> None:
        return None

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Prepare the subsample."""
        check_posterior(posterior)
        model = posterior.model
        if not isinstance(model, AbstractCountsModel):
            rule = "be a model of counts on simplices for this method"
            cure = "See tallmc.models.dirichlet_multinomial and tallmc.models.lda."
            raise InvalidInput("posterior", rule, type(model).__name__, cure)
        check_row_access(self, posterior)
        check_int("size", self.size, 1, posterior.n_rows)
        selection = self.subsample.prepare(SubsampleContext(posterior), Fixed(self.size))
        if not isinstance(selection, AbstractStaticSelection):
            rule = "choose rows independently of the position"
            cure = "Use Uniform() or Preferential(weights)."
            raise InvalidInput("subsample", rule, type(self.subsample).__name__, cure)
        kernel = SimplexKernel(
            counts_model=model,
            selection=selection,
            transition=_TRANSITIONS[self.transition](),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=posterior.init,
        )
        return PreparedMethod(BoundKernel(kernel, posterior), None, 0)
