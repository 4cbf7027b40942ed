"""The anchored plan: whitened Leimkuhler–Matthews steps with control variates and row weights.

In coordinates u with θ = θ̂ + Cu, CCᵀ = Σ̂, the posterior is close to a standard Gaussian near its
mode. There gradient noise of variance v per coordinate inflates variances by h v/(4 − h), and an
effective draw takes about (4 − h)/h steps. The rows per effective draw therefore do not depend on
h. Since a step has a fixed cost, h is as large as its own bias and the noise of `_ROWS` rows allow.

1. The weights come from the anchor's Gaussian, widened. Pairs of chains from the mode find where
   the posterior really is, and measure the gradient noise there.
2. If this noise needs more rows, or has a heavy tail, new weights are computed from positions of
   the pilot. For skewed posteriors, as with rare classes, this leaves a tenth of the noise. A share
   of the first weights is kept, to cover tails that the pilot has not visited. If the tail stays
   heavy, the weights come from more positions. If even that does not help, the number of rows
   follows the noise measured in each step.
3. Pairs of chains at h and h/2 measure the joint bias of step size and noise (`pairs.py`), and the
   noise again. h is reduced until both are within their budgets. If that leaves only small steps, a
   step gets more rows.

All these chains run the same compiled programs as the run itself, unless a step gets more rows.
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
from ..._core.statistics import HEAVY_TAIL, pareto_k
from ..._core.supervision import checkpoint, is_short_of_time, stage
from ..._engine.chains import chains_at_once
from ..._engine.kernel import BoundKernel
from ..._rows.access import RowValues
from ...dynamics import LeimkuhlerMatthews
from ...geometry import GeometryChoice
from ...gradient import ControlVariate
from ...models.posterior import AbstractPosterior
from ...schedule import Constant, in_precision
from ...subsample import Fixed, Preferential, TargetNoise
from ...subsample.weights import residual_weights
from ..abstract import Account, Bias, ErrorBudget, PreparedMethod, visited_noise
from ..method import Method
from ..pairs import PairRun

# Pilot runs of the automatic choice: pairs of chains, and the gradient noise where they went.


_LARGEST_IMPRECISION = 0.8
"""Errors of a measured bias, relative to the budget. Above 1 the bias counts as unknown."""
_MOST_DRAWS = 6400
_CLEAR = 2.0  # standard errors by which a bias must exceed its budget to be seen at once


class Pilot(NamedTuple):
    """Measurements from a run of pairs."""

    bias: Bias
    positions: Float[np.ndarray, "chains draws d"]
    """Of the fine chains."""
    noise: Float[np.ndarray, " d"]
    """Variance of the gradient noise per parameter, relative to the posterior variance."""
    noise_per_coordinate: float
    """Gradient noise per coordinate of the geometry."""
    tail: float
    """Pareto's k of the squared gradient noise; 0 if there is no noise."""
    n_row_evals: int
    failed: bool

    @property
    def worst_noise(self) -> float:
        return max(float(self.noise.max()), self.noise_per_coordinate)


def run_pairs(
    bound: BoundKernel,
    measured: BoundKernel,
    start: Float[Array, "chains d"],
    *,
    n_draws: int,
    burn_in: int,
    seed: int,
    precise_for: ErrorBudget | None = None,
) -> Pilot:
    """Run pairs of chains of `bound` from `start`, at its step size and at half of it.

    The gradient noise is that of `measured`, which draws a fixed number of rows. With
    `precise_for`, the pairs run on until the bias is known well enough for this budget, or clearly
    exceeds it.
    """
    pairs = PairRun(bound, start, burn_in=burn_in, n_draws=n_draws, seed=seed)
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
        nothing = np.full(fine.shape[2], np.nan)
        return Pilot(bias, fine, nothing, np.nan, 0.0, pairs.n_row_evals, True)
    found = visited_noise(measured.composition, measured.rows, fine, seed)
    variance = np.maximum(fine.var(axis=(0, 1)), np.finfo(float).tiny)
    return Pilot(
        bias=bias,
        positions=fine,
        noise=found.by_parameter / variance,
        noise_per_coordinate=found.per_coordinate,
        tail=pareto_k(found.squared) if found.squared.any() else 0.0,
        n_row_evals=pairs.n_row_evals + found.n_row_evals,
        failed=False,
    )


_PAIRS = 16  # or more, if the device runs more chains at once
_ROWS = 64
_PILOT_STEP = 0.5
# Coarse steps per run of pairs. A step size below _PILOT_STEP gets proportionally more of them.
_PILOT_LENGTH, _CHECK_LENGTH, _SHORTEST_CHECK = 64, 400, 32
# Sizes grow by a large factor, since each size needs a compilation.
_SIZE_FACTOR = 4
# From this size on the rows dominate the cost of a step: smaller steps are as good as more rows.
_ENOUGH_ROWS = 256
_FIRST_STEP = 1.0
_WORTHWHILE_STEP = 0.3  # a smaller step is a reason for more rows
# If the pilot uses less than this share of the allowed bias, _FIRST_STEP is worth a check.
_SMALL_BIAS = 0.3
_SMALLEST_STEP = 1e-3
_MOST_CHECKS = 12
# Positions of the pilot that the weights are averaged over, at first and if the tail stays heavy.
_WEIGHT_POSITIONS, _MANY_WEIGHT_POSITIONS = 8, 64
_FIRST_WEIGHTS_SHARE = 0.2
_NO_NOISE = 1e-12  # per coordinate; smaller than rounding errors
_LARGEST_ROW_SHARE = 0.25
_BURN_IN_TIME = 20  # burn-in steps times step size
_NOISE_SLACK = 1.5  # a step that is larger than the noise allows by this factor is checked again
_LARGEST_GROWTH = 16  # most rows of a step whose size follows the noise, relative to the least
_OUT_OF_TIME = (
    "half of max_seconds passed before step size and gradient noise were within their budgets. "
    "Raise max_seconds."
)


class _WeightedRows(NamedTuple):
    """Weights and a number of rows per step, with their kernels at some step size."""

    weights: RowValues
    size: int
    noise: float | None
    """Noise per coordinate that the number of rows follows; None if the number is fixed."""
    method: Method
    kernel: BoundKernel
    fixed: BoundKernel
    """The same kernel with a fixed number of rows, to measure its noise."""


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
    rows_per_draw: float = math.inf
    """Rows per effective draw of the plan."""
    _weights_from: str = (
        "row weights from the anchor's Gaussian: the pilot chains found too little noise for "
        "better ones to matter"
    )

    def plan(self) -> PreparedMethod | None:
        """Return the plan, or None if using all rows is the better choice."""
        stage("computing row weights at the mode")
        rows = self._rows(self._gaussian_weights(), _ROWS)
        stage("running pilot chains")
        pilot = self._pilot(rows)
        if pilot is None:
            self.why_not = "pilot runs with gradient noise failed at every step size"
            return None
        if self._largest_step(pilot) < _PILOT_STEP or pilot.tail > HEAVY_TAIL:
            stage("computing row weights at the positions of the pilot chains")
            weights = self._pilot_weights(rows.weights, pilot, _WEIGHT_POSITIONS)
            rows = self._rows(weights, rows.size)
        stage("checking step size and gradient noise with pairs of chains")
        settings = self._settle(rows, pilot)
        if settings is None:
            return None
        step, rows, checked, doubts = settings
        self.rows_per_draw = rows.size * (4 - step) / step
        method = dataclasses.replace(rows.method, step_size=step / self.stiffness)
        self._explain(rows, step, checked)
        account = Account(method, self.budget, tuple(self.reasons), doubts, checked.bias)
        start = on_device(checked.positions[:, -1], self.posterior.dtype)
        burn_in, thin = math.ceil(_BURN_IN_TIME / step), max(1, int(0.5 / step))
        rows_so_far = self.anchor.n_row_evals + self.n_row_evals
        kernel = self._at_step(rows.kernel, step)
        return PreparedMethod(kernel, self.anchor, rows_so_far, account, start, burn_in, thin)

    def _settle(
        self, rows: _WeightedRows, pilot: Pilot
    ) -> tuple[float, _WeightedRows, Pilot, tuple[str, ...]] | None:
        """Reduce the step size, and add rows, until bias and noise are within their budgets.

        Returns both, with what the last pairs measured, and doubts.
        """
        small_bias = pilot.bias.excess(self.budget, errors=1.0) < _SMALL_BIAS
        step, measured = _FIRST_STEP if small_bias else _PILOT_STEP, pilot
        best_weights = False
        for _ in range(_MOST_CHECKS):
            checkpoint()
            if is_short_of_time():
                return step, rows, measured, (_OUT_OF_TIME,)
            length = max(_SHORTEST_CHECK, _CHECK_LENGTH * _PAIRS // len(measured.positions))
            found = self._pairs(rows, measured, step, length, precise=True)
            if found.failed:
                step /= 2
                continue
            measured = found
            inflation = self._inflation(measured, _PILOT_STEP) / self.budget.inflation
            share = rows.size * inflation / self.posterior.n_rows
            if share > _LARGEST_ROW_SHARE:
                part = "all" if share > 1 else f"{share:.0%} of"
                self.why_not = f"gradient noise would require {part} the rows in a step"
                return None
            # Rare rows may make the noise of a heavy tail a hundred times larger.
            matters = 100 * self._inflation(measured, step) > self.budget.inflation
            heavy = measured.tail > HEAVY_TAIL and matters
            if heavy and not best_weights:
                best_weights = True
                weights = self._pilot_weights(rows.weights, measured, _MANY_WEIGHT_POSITIONS)
                rows = self._rows(weights, rows.size)
                continue
            if heavy and rows.noise is None:
                self.reasons.append(
                    f"the gradient noise has a heavy tail (k = {measured.tail:.2f}): "
                    "the number of rows follows the noise measured in each step"
                )
                target = measured.noise_per_coordinate / 2
                rows = self._rows(rows.weights, 2 * rows.size, target)
                continue
            largest = self._largest_step(measured)
            if step > _NOISE_SLACK * largest:
                room = rows.size < min(_ENOUGH_ROWS, self.posterior.n_rows / _SIZE_FACTOR)
                if largest < _WORTHWHILE_STEP and room:
                    rows = self._rows(rows.weights, _SIZE_FACTOR * rows.size, rows.noise)
                else:
                    step = max(0.25 * step, 0.9 * largest)
            elif (excess := measured.bias.excess(self.budget, errors=1.0)) > 1:
                step *= max(0.25, 0.9 * excess**-0.5)
            else:
                # The bias of the checked step covers that of a smaller one.
                return min(step, largest), rows, measured, ()
        self.why_not = "no step size and number of rows keep the bias within its budget"
        return step, rows, measured, (f"{self.why_not}.",)

    def _largest_step(self, pilot: Pilot) -> float:
        """The step size at which noise inflates the worst variance by the whole budget."""
        if pilot.noise_per_coordinate <= _NO_NOISE:
            return 4.0
        return 4 / (1 + pilot.worst_noise / self.stiffness / self.budget.inflation)

    def _inflation(self, pilot: Pilot, step: float) -> float:
        """Relative inflation of the worst variance by gradient noise."""
        return step / self.stiffness / (4 - step) * pilot.worst_noise

    def _explain(self, rows: _WeightedRows, step: float, checked: Pilot) -> None:
        whitened = self.stiffness == 1
        unit = "posterior standard deviations" if whitened else "units of the fastest direction"
        mean_change = np.abs(checked.bias.mean).max() / 2
        sd_change = np.abs(checked.bias.sd).max() / 2
        selection = rows.fixed.composition.selection
        n_certain = selection.certain.shape[0]  # type: ignore[attr-defined]
        certain = f", {n_certain} of them the same in every step" if n_certain else ""
        more = ", and more if the measured noise requires it" if rows.noise is not None else ""
        self.reasons += [
            self._weights_from,
            f"control variates of order {self.order}, anchored {self.anchor.decrement or 0:.2g} "
            "standard deviations from the mode",
            f"{rows.size} rows per step{certain}{more}: gradient noise may inflate a variance by "
            f"at most {self.budget.inflation:.1%}",
            f"Leimkuhler–Matthews steps of {step:.3g} in {unit}: half the step size changes means "
            f"by {mean_change:.2g} standard deviations and standard deviations by {sd_change:.1%}",
        ]

    def _pilot(self, rows: _WeightedRows) -> Pilot | None:
        """Run pairs from the mode, at the largest step size at which no chain fails."""
        pairs = max(_PAIRS, chains_at_once(self.posterior.dim))
        at_mode = np.broadcast_to(np.asarray(self.anchor.position), (pairs, self.posterior.dim))
        step = _PILOT_STEP
        while step > _SMALLEST_STEP:
            pilot = self._pairs(rows, at_mode, step, _PILOT_LENGTH)
            if not pilot.failed:
                return pilot
            step /= 4
        return None

    def _pairs(
        self,
        rows: _WeightedRows,
        before: Pilot | np.ndarray,
        step: float,
        length: int,
        precise: bool = False,
    ) -> Pilot:
        """Run pairs from these positions, or from the last positions of `before`."""
        at = before.positions[:, -1] if isinstance(before, Pilot) else before
        pilot = run_pairs(
            self._at_step(rows.kernel, step),
            rows.fixed,
            on_device(at, self.posterior.dtype),
            n_draws=math.ceil(length * max(1.0, _PILOT_STEP / step)),
            burn_in=math.ceil(_BURN_IN_TIME / step),
            seed=self.seed,
            precise_for=self.budget if precise else None,
        )
        self.n_row_evals += pilot.n_row_evals
        return pilot

    def _gaussian_weights(self) -> RowValues:
        metric = self.geometry.prepare(self.posterior, self.anchor)
        self.n_row_evals += self.posterior.n_rows
        return residual_weights(self.posterior, self.anchor, self.order, metric)

    def _pilot_weights(self, first_weights: RowValues, pilot: Pilot, count: int) -> RowValues:
        """Weights from `count` positions of the pilot, mixed with the first weights."""
        metric = self.geometry.prepare(self.posterior, self.anchor)
        self.n_row_evals += count * self.posterior.n_rows
        self._weights_from = f"row weights from the noise at {count} positions of a pilot run"
        visited = pilot.positions.reshape(-1, self.posterior.dim)
        chosen = visited[np.linspace(0, len(visited) - 1, count).astype(int)]
        positions = on_device(chosen, self.posterior.dtype)
        weights = residual_weights(
            self.posterior, self.anchor, self.order, metric, positions=positions
        )
        share = _FIRST_WEIGHTS_SHARE
        return self.posterior.rows.mixture([weights, first_weights], [1 - share, share])

    def _rows(self, weights: RowValues, size: int, noise: float | None = None) -> _WeightedRows:
        """Prepare kernels with these weights; the number of rows follows `noise`, if given."""
        fixed = Method(
            dynamics=LeimkuhlerMatthews(),
            gradient=ControlVariate(self.order),
            subsample=Preferential(weights, take_all=True),
            batch_size=Fixed(min(size, self.posterior.n_rows)),
            geometry=self.geometry,
            step_size=_PILOT_STEP / self.stiffness,
        )
        of_fixed = self._kernel(fixed)
        if noise is None:
            return _WeightedRows(weights, size, None, fixed, of_fixed, of_fixed)
        target = max(_NOISE_SLACK * noise, _NO_NOISE)
        most = min(_LARGEST_GROWTH * size, self.posterior.n_rows)
        method = dataclasses.replace(fixed, batch_size=TargetNoise(size, target, max_size=most))
        return _WeightedRows(weights, size, noise, method, self._kernel(method), of_fixed)

    def _kernel(self, method: Method) -> BoundKernel:
        prepared = method.prepare(self.posterior, self.anchor)
        self.n_row_evals += prepared.n_row_evals - self.anchor.n_row_evals
        return prepared.kernel

    def _at_step(self, bound: BoundKernel, step: float) -> BoundKernel:
        schedule = in_precision(Constant(step / self.stiffness), self.posterior.dtype)
        return eqx.tree_at(lambda bound: bound.kernel.schedule, bound, schedule)
