"""Firefly Monte Carlo: exact draws from a few rows per step.

Maclaurin and Adams (2014). Each likelihood L_i has a lower bound B_i, and each row a brightness
z_i ∈ {0, 1}. The joint density

    p(θ, z) ∝ p(θ) Π_i B_i(θ) Π_{z_i=1} (L_i(θ) − B_i(θ)) / B_i(θ)

has the posterior as its marginal, since the sum over z_i of row i's factors is L_i. A step

    1. redraws z_i, P(z_i = 1 | θ) = 1 − B_i/L_i, for ⌈fraction · N⌉ consecutive rows that start at
       a random row (a ring);
    2. moves θ given z by an exact dynamics, random-walk Metropolis or MALA, which needs only the
       bright rows.

Both leave p(θ, z) invariant, so the draws are exact at any step size, fraction and anchor; these
decide how fast the chain mixes. The bound is tight at the anchor: near the anchor few rows are
bright. `tangent.py` has the bound of logistic regression, `taylor.py` a bound for any model.

Given z, the bright rows pull θ away from the anchor: their factors are nearly 0 there. With many
bright rows of which each step redraws few, θ and z are strongly dependent and the chain is slow. A
bound that is equally loose for all rows makes too many rows bright.

Cost: preparing the bound takes one pass or a few. A step touches the rows of the ring once and the
bright rows twice, at θ and at the proposal. To find the bright rows, a step counts N bits, 32 per
word.
"""

from __future__ import annotations

import dataclasses
import math

from ...anchor.anchor import Anchor, AnchorLevel
from ...core.errors import InvalidInput, check_number
from ...dynamics import MALA, RandomWalk
from ...dynamics.base import Curvature, DynamicsContext, Suggestion
from ...engine.kernel import BoundKernel
from ...geometry import GeometryChoice, Identity
from ...models.posterior import AbstractPosterior, check_posterior
from ...schedule import AbstractSchedule, as_schedule, in_precision
from ..base import (
    AbstractReadingMethod,
    PreparedMethod,
    check_row_access,
    prepare_anchor,
)
from .bound import BoundChoice
from .kernel import FireflyKernel
from .tangent import Tangent

_PROPOSALS = {"random-walk": RandomWalk(), "langevin": MALA()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlyMC(AbstractReadingMethod):
    """Firefly Monte Carlo, exact, for `logistic_regression`, or any model with a bound of yours.

    **Arguments:**

    - `step_size`: the step size of the proposal, a number or a schedule.
    - `fraction`: the share of the rows whose brightness is redrawn per step.
    - `proposal`: "langevin" (MALA) or "random-walk".
    - `geometry`: the coordinates in which the proposal moves.
    - `bound`: the lower bound on each likelihood. By default `Tangent()`, for logistic regression;
      `Taylor(...)` bounds any likelihood whose Taylor remainder you can bound.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.FlyMC(step_size=0.02, proposal="random-walk").axes["dynamics"]
    'RandomWalk'
    """

    step_size: float | AbstractSchedule
    fraction: float = 0.1
    proposal: str = "langevin"
    geometry: GeometryChoice = dataclasses.field(default_factory=Identity)
    bound: BoundChoice | None = None

    def __post_init__(self) -> None:
        as_schedule(self.step_size)
        check_number("fraction", self.fraction, 0, 1, low_open=True)
        if self.proposal not in _PROPOSALS:
            raise InvalidInput(
                "proposal", f"be one of {', '.join(map(repr, _PROPOSALS))}", self.proposal
            )
        if not isinstance(self.geometry, GeometryChoice):
            raise InvalidInput(
                "geometry", "be a GeometryChoice", self.geometry, "See tallmc.geometry."
            )
        if not isinstance(self.bound, BoundChoice | None):
            raise InvalidInput("bound", "be Tangent(), Taylor(...) or None", self.bound)

    @property
    def needs(self) -> AnchorLevel:
        return max(AnchorLevel.MODE, self.geometry.needs)

    @property
    def exact(self) -> bool:
        return self.bound is None or self.bound.is_proved

    @property
    def unseen_by_pairs(self) -> None:
        return None

    @property
    def axes(self) -> dict[str, str]:
        dynamics = type(_PROPOSALS[self.proposal]).__name__
        return {
            "dynamics": dynamics,
            "gradient": "of bright rows",
            "subsample": "FlyMC",
            "size": "as bright",
        }

    def suggest(self, curvature: Curvature) -> Suggestion:
        return _PROPOSALS[self.proposal].suggest(curvature)

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Find the anchor, and the bound that is tight there."""
        check_posterior(posterior)
        bound_choice = self.bound or Tangent()
        bound_choice.check(posterior)
        check_row_access(self, posterior)
        anchor, rows = prepare_anchor(posterior, anchor, self.needs)
        assert anchor is not None, "FlyMC requires the mode"
        geometry = self.geometry.prepare(posterior, anchor)
        bound, rows_for_bound = bound_choice.prepare(posterior, anchor)
        kernel = FireflyKernel(
            bound=bound,
            dynamics=_PROPOSALS[self.proposal].prepare(DynamicsContext(posterior, geometry, None)),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=anchor.position,
            ring_size=math.ceil(self.fraction * posterior.n_rows),
            n_rows=posterior.n_rows,
        )
        return PreparedMethod(BoundKernel(kernel, posterior), anchor, rows + rows_for_bound)
