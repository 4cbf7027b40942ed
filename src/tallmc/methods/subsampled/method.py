"""Metropolis–Hastings with scalable subsampling: exact draws from a Poisson number of rows.

Prado, Nemeth and Sherlock (2024), in the coordinates u of the Laplace approximation, θ = θ̂ + Cu.
Row i has f_i = T_i + R_i, its Taylor expansion at the anchor and the remainder (`remainders.py`),
and a step has D_i = R_i(u') − R_i(u) (`rules.py`, `thinning.py`):

    |D_i| ≤ c_i M(u, u'),   B ~ Poisson(M Σc) rows ∝ c_i,   each kept with probability φ_i/(c_i M),
    log ratio = log q(u | u')/q(u' | u) − Σ T_i(u') + Σ T_i(u) + Σ_kept log(φ_i(−D_i)/φ_i(D_i))

A proposal that leaves N(θ̂, Σ̂) invariant meets the target's excess over this Gaussian only. The
chain leaves the posterior invariant for any step size and order, as long as the bounds c_i M hold.

Cost: a pass for c_i, one more for order 3, and 2d + 1 more to check a bound of the user's
(`given.py`). A step evaluates its candidates and the certain rows, those that would be drawn at
least once a step anyway. Σc falls as N^(−1/2) with order 2 and as N^(−1) with order 3. In d
dimensions the bound |wᵀu| ≤ ‖w‖‖u‖ loses a factor √d for each power.

`caps` < 1 takes a fraction of the bound. Rows whose change exceeds their cap are counted. A run
without any is what a run with rigorous caps would be on the rows that it saw; one with some is not
exact, and says so.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from ...anchor.anchor import Anchor, AnchorLevel
from ...core.errors import InvalidInput, check_int, check_number
from ...dynamics.base import Curvature, Suggestion
from ...engine.kernel import BoundKernel
from ...models.posterior import AbstractPosterior, check_posterior
from ...schedule import AbstractSchedule, as_schedule, in_precision
from ..base import (
    AbstractReadingMethod,
    PreparedMethod,
    check_row_access,
    prepare_anchor,
)
from ..firefly.taylor import Taylor
from .candidates import BoundedRows, bound_rows, poisson_decision, typical_growth
from .kernel import SubsampledKernel
from .proposals import PROPOSALS, check_proposal
from .rules import AbstractRule, Factorised, Thinned, Tuna

_MALA_STEP = 2.0  # in one dimension; smaller by the cube root of d in d dimensions
_RULES = ("thinned", "factorised", "tuna")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsampledMH(AbstractReadingMethod):
    """Metropolis–Hastings that decides from a Poisson number of rows; exact.

    For logistic, probit, binomial, Poisson, linear, softmax, Student-t and Gamma regression, linear
    regression of unknown scale, and any model with a bound of yours.

    **Arguments:**

    - `step_size`: h. Proposals "pcn" with h = 1 are independent of the position.
    - `proposal`: "pcn", "langevin" or "random-walk", in the coordinates of the anchor's Gaussian.
    - `order`: the order of the expansions that the rows are compared with, 0 to 3.
    - `rule`: "thinned", "tuna" or "factorised".
    - `chi`: χ of the rule "tuna"; the larger, the more rows and the higher the acceptance rate.
    - `caps`: the fraction of the bound on each row's change that is used. Below 1 fewer rows are
      read, and rows that exceed their cap are counted. They end the claim of exactness.
    - `bound`: a `Taylor(...)` with your bound on the Taylor remainders of the rows, for any model.
      Needs order 2 and double precision. By default the bound comes from the model.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.SubsampledMH(step_size=1.0).exact
    True
    """

    step_size: float | AbstractSchedule
    proposal: str = "pcn"
    order: int = 2
    rule: str = "thinned"
    chi: float = 0.0
    caps: float = 1.0
    bound: Taylor | None = None

    def __post_init__(self) -> None:
        check_proposal(self.proposal, self.step_size)
        if self.rule not in _RULES:
            raise InvalidInput("rule", f"be one of {', '.join(map(repr, _RULES))}", self.rule)
        check_int("order", self.order, 0, 3)
        check_number("chi", self.chi, 0)
        check_number("caps", self.caps, 0, 1, low_open=True)
        if not isinstance(self.bound, Taylor | None):
            cure = "A lower bound on the likelihood such as Tangent() does not bound remainders."
            raise InvalidInput("bound", "be Taylor(...) or None", self.bound, cure)
        if self.bound is not None and self.order != 2:
            raise InvalidInput("order", "be 2 with a bound of yours", self.order)

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.HESSIAN

    @property
    def exact(self) -> bool:
        return self.bound is None or self.bound.is_proved

    @property
    def unseen_by_pairs(self) -> None:
        return None

    @property
    def axes(self) -> dict[str, str]:
        return {
            "dynamics": f"{self.proposal} proposals",
            "gradient": f"surrogate of order {self.order}",
            "subsample": f"{self.rule} rows",
            "size": "Poisson",
        }

    def suggest(self, curvature: Curvature) -> Suggestion:
        if self.proposal == "pcn":
            return Suggestion(1.0, "proposals that do not depend on the position", 1.0, 1.0)
        step = _MALA_STEP / curvature.dim ** (1 / 3)
        return Suggestion(step, "the scaling of Langevin proposals", 2 / step, step)

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Find the anchor, the bounds of all rows and the table that draws them."""
        check_posterior(posterior)
        if self.bound is not None:
            self.bound.check(posterior)
        check_row_access(self, posterior)
        anchor, n_row_evals = prepare_anchor(posterior, anchor, self.needs)
        assert anchor is not None, "the method requires an anchor"
        bounded = bound_rows(posterior, anchor, self.order, self.bound)
        kernel = self.with_bounds(posterior, bounded)
        return PreparedMethod(kernel, anchor, n_row_evals + bounded.n_row_evals)

    def with_bounds(self, posterior: AbstractPosterior, bounded: BoundedRows) -> BoundKernel:
        """The kernel with these bounds."""
        schedule = in_precision(as_schedule(self.step_size), posterior.dtype)
        proposal, surrogate = PROPOSALS[self.proposal], bounded.surrogate
        typical = typical_growth(surrogate, proposal, schedule(jnp.asarray(0)))
        caps, rule = self.caps * bounded.constants, self._rule(posterior.dtype)
        decision, certain = poisson_decision(posterior, caps, rule, typical, posterior.dtype)
        kernel = SubsampledKernel(
            surrogate=eqx.tree_at(lambda part: part.certain, surrogate, certain),
            proposal=proposal,
            decision=decision,
            schedule=schedule,
            rest=surrogate.anchor,
        )
        return BoundKernel(kernel, posterior)

    def _rule(self, dtype: Any) -> AbstractRule:
        match self.rule:
            case "thinned":
                return Thinned()
            case "factorised":
                return Factorised()
            case _:
                return Tuna(jnp.asarray(self.chi, dtype))
