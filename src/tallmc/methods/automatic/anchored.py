"""Stochastic gradients with control variates, where neither a series nor all rows will do.

In coordinates u with θ = θ̂ + Su, Leimkuhler–Matthews steps of size h have little bias of their own.
Gradient noise of variance v per coordinate inflates variances by h v/(4 − h). An effective draw
takes about (4 − h)/h steps, so the rows per effective draw do not depend on h. Since a step has a
fixed cost, h is as large as its own bias and the noise of a few rows allow.

Rows are drawn in proportion to their noise under the anchor's Gaussian, widened. Pairs of chains at
h and h/2 (`pairs.py`) measure the joint bias of step size and noise, and the noise itself. h is
reduced until both are within their budgets. If that leaves only small steps, a step gets more rows.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from ..._anchor.anchor import Anchor
from ..._core.arrays import on_device
from ..._core.supervision import checkpoint, is_short_of_time, stage
from ..._engine.chains import chains_at_once
from ..._engine.kernel import BoundKernel
from ..._rows.access import RowValues
from ...dynamics import LeimkuhlerMatthews
from ...geometry import GeometryChoice
from ...gradient import ControlVariate
from ...models.posterior import AbstractPosterior
from ...schedule import Constant, in_precision
from ...subsample import Fixed, Preferential
from ...subsample.weights import residual_weights
from ..abstract import Account, Bias, ErrorBudget, PreparedMethod, visited_noise
from ..method import Method
from ..pairs import PairRun

_LARGEST_IMPRECISION = 0.8
"""Errors of a measured bias, relative to the budget. Above 1 the bias counts as unknown."""
_CLEAR = 2.0  # standard errors by which a bias must exceed its budget to be seen at once
_PAIRS = 16  # or more, if the device runs more chains at once
_FIRST_STEP, _SMALLEST_STEP, _WORTHWHILE_STEP = 0.5, 1e-3, 0.3
"""A step smaller than the last is a reason for more rows."""
_LENGTH, _SHORTEST, _MOST_DRAWS = 400, 32, 6400
"""Coarse steps of a run of pairs. A smaller step gets proportionally more of them."""
# Sizes grow by a large factor, since each size needs a compilation. From _ENOUGH_ROWS on the rows
# dominate the cost of a step: smaller steps are as good as more rows.
_FEWEST_ROWS, _ENOUGH_ROWS, _SIZE_FACTOR = 64, 256, 4
_LARGEST_ROW_SHARE = 0.25
_MOST_CHECKS = 12
_NO_NOISE = 1e-12  # per coordinate; smaller than rounding errors
_BURN_IN_TIME = 20  # burn-in steps times step size
_NOISE_SLACK = 1.5  # a step that is larger than the noise allows by this factor is checked again
_OUT_OF_TIME = (
    "half of max_seconds passed before step size and gradient noise were within their budgets. "
    "Raise max_seconds."
)


class Pilot(NamedTuple):
    """Measurements from a run of pairs."""

    bias: Bias
    positions: Float[np.ndarray, "chains draws d"]
    """Of the fine chains."""
    noise: float
    """The largest variance of the gradient noise: of a coordinate of the geometry, or of a
    parameter relative to the posterior variance."""
    n_row_evals: int
    failed: bool


def run_pairs(
    bound: BoundKernel,
    start: Float[Array, "chains d"],
    *,
    n_draws: int,
    burn_in: int,
    seed: int,
    number: int = 0,
    precise_for: ErrorBudget | None = None,
) -> Pilot:
    """Run pairs of chains of `bound` from `start`, at its step size and at half of it.

    With `precise_for`, the pairs run on until the bias is known well enough for this budget, or
    clearly exceeds it.
    """
    pairs = PairRun(bound, start, burn_in=burn_in, n_draws=n_draws, seed=seed, number=number)
    bias = pairs.bias()
    if precise_for is not None:
        while (
            not pairs.failed
            and pairs.draws < _MOST_DRAWS
            and bias.imprecision(precise_for) > _LARGEST_IMPRECISION
            and bias.excess(precise_for, errors=_CLEAR) <= 1
        ):
            pairs.run_to(2 * pairs.draws)
            bias = pairs.bias()
    _, fine = pairs.positions()
    if pairs.failed:
        return Pilot(bias, fine, np.nan, pairs.n_row_evals, True)
    found = visited_noise(bound.composition, bound.rows, fine, seed)
    variance = np.maximum(fine.var(axis=(0, 1)), np.finfo(float).tiny)
    noise = max(float(np.max(found.by_parameter / variance)), found.per_coordinate)
    return Pilot(bias, fine, noise, pairs.n_row_evals + found.n_row_evals, False)


@dataclasses.dataclass
class AnchoredPlanner:
    """Builds an anchored plan, and counts the rows it touches."""

    posterior: AbstractPosterior
    anchor: Anchor
    order: int
    geometry: GeometryChoice
    stiffness: float
    """Largest curvature in the coordinates of the geometry; steps h are in units of its inverse."""
    budget: ErrorBudget
    seed: int
    n_row_evals: int = 0
    reasons: list[str] = dataclasses.field(default_factory=list)
    why_not: str = ""
    """Why there is no plan, or why the plan is doubtful."""

    def plan(self) -> PreparedMethod | None:
        """Return the plan, or None if using all rows is the better choice."""
        posterior = self.posterior
        stage("computing row weights at the mode")
        metric = self.geometry.prepare(posterior, self.anchor)
        self.n_row_evals += posterior.n_rows
        weights = residual_weights(posterior, self.anchor, self.order, metric)
        stage("checking step size and gradient noise with pairs of chains")
        n_pairs, size = max(_PAIRS, chains_at_once(posterior.dim)), _FEWEST_ROWS
        method, kernel = self._prepared(weights, size)
        at = np.broadcast_to(np.asarray(self.anchor.position), (n_pairs, posterior.dim))
        step, measured = _FIRST_STEP, None
        for number in range(_MOST_CHECKS):
            checkpoint()
            if step < _SMALLEST_STEP or (is_short_of_time() and measured is not None):
                break
            found = self._pairs(kernel, at, step, number)
            if found.failed:
                step /= 4
                continue
            measured, at = found, found.positions[:, -1]
            share = size * self._inflation(found, _FIRST_STEP) / posterior.n_rows
            if share > _LARGEST_ROW_SHARE:
                part = "all" if share > 1 else f"{share:.0%} of"
                self.why_not = f"gradient noise would require {part} the rows in a step"
                return None
            largest = self._largest_step(found)
            if step > _NOISE_SLACK * largest:
                if largest < _WORTHWHILE_STEP and size < min(_ENOUGH_ROWS, posterior.n_rows // 4):
                    size *= _SIZE_FACTOR
                    method, kernel = self._prepared(weights, size)
                else:
                    step = max(0.25 * step, 0.9 * largest)
            elif (excess := found.bias.excess(self.budget, errors=1.0)) > 1:
                step *= max(0.25, 0.9 * excess**-0.5)
            else:
                # The bias of the checked step covers that of a smaller one.
                return self._plan(method, kernel, min(step, largest), size, found)
        if measured is None:
            self.why_not = "pilot runs with gradient noise failed at every step size"
            return None
        if is_short_of_time():
            return self._plan(method, kernel, step, size, measured, (_OUT_OF_TIME,))
        self.why_not = "no step size and number of rows keep the bias within its budget"
        return self._plan(method, kernel, step, size, measured, (f"{self.why_not}.",))

    def _plan(
        self,
        method: Method,
        kernel: BoundKernel,
        step: float,
        size: int,
        checked: Pilot,
        doubts: tuple[str, ...] = (),
    ) -> PreparedMethod:
        unit = "posterior standard deviations" if self.stiffness == 1 else "the fastest direction"
        mean_change, sd_change = (
            np.abs(of).max() / 2 for of in (checked.bias.mean, checked.bias.sd)
        )
        reasons = (
            *self.reasons,
            f"control variates of order {self.order}, anchored {self.anchor.decrement or 0:.2g} "
            "standard deviations from the mode",
            f"{min(size, self.posterior.n_rows):,} rows per step: gradient noise may inflate a "
            "variance by at most "
            f"{self.budget.inflation:.1%}",
            f"Leimkuhler–Matthews steps of {step:.3g} in units of {unit}: half the step size "
            f"changes means by {mean_change:.2g} standard deviations and standard deviations by "
            f"{sd_change:.1%}",
        )
        method = dataclasses.replace(method, step_size=step / self.stiffness)
        account = Account(method, self.budget, reasons, doubts, checked.bias)
        return PreparedMethod(
            self._at_step(kernel, step),
            self.anchor,
            self.anchor.n_row_evals + self.n_row_evals,
            account,
            on_device(checked.positions[:, -1], self.posterior.dtype),
            math.ceil(_BURN_IN_TIME / step),
            max(1, int(0.5 / step)),
        )

    def _largest_step(self, pilot: Pilot) -> float:
        """The step size at which noise inflates the worst variance by the whole budget."""
        if pilot.noise <= _NO_NOISE:
            return 4.0
        return 4 / (1 + pilot.noise / self.stiffness / self.budget.inflation)

    def _inflation(self, pilot: Pilot, step: float) -> float:
        """Relative inflation of the worst variance by gradient noise, of the budget."""
        return step / self.stiffness / (4 - step) * pilot.noise / self.budget.inflation

    def _pairs(self, kernel: BoundKernel, at: np.ndarray, step: float, number: int) -> Pilot:
        """Run pairs from these positions, where the pairs of an earlier check may have ended."""
        length = max(_SHORTEST, _LENGTH * _PAIRS // len(at))
        pilot = run_pairs(
            self._at_step(kernel, step),
            on_device(at, self.posterior.dtype),
            n_draws=math.ceil(length * max(1.0, _FIRST_STEP / step)),
            burn_in=math.ceil(_BURN_IN_TIME / step),
            seed=self.seed,
            number=number,
            precise_for=self.budget,
        )
        self.n_row_evals += pilot.n_row_evals
        return pilot

    def _prepared(self, weights: RowValues, size: int) -> tuple[Method, BoundKernel]:
        method = Method(
            dynamics=LeimkuhlerMatthews(),
            gradient=ControlVariate(self.order),
            subsample=Preferential(weights, take_all=True),
            batch_size=Fixed(min(size, self.posterior.n_rows)),
            geometry=self.geometry,
            step_size=_FIRST_STEP / self.stiffness,
        )
        prepared = method.prepare(self.posterior, self.anchor)
        self.n_row_evals += prepared.n_row_evals - self.anchor.n_row_evals
        return method, prepared.kernel

    def _at_step(self, bound: BoundKernel, step: float) -> BoundKernel:
        schedule = in_precision(Constant(step / self.stiffness), self.posterior.dtype)
        return eqx.tree_at(lambda bound: bound.kernel.schedule, bound, schedule)
