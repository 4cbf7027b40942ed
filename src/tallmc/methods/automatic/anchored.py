"""The anchored plan: whitened Leimkuhler–Matthews steps, control variates, weights from pilot runs.

In coordinates u with θ = θ̂ + Cu, CCᵀ = Σ̂, the posterior is close to a standard Gaussian near its
mode. There gradient noise of variance v per coordinate inflates variances by h v/(4 − h), and an
effective draw takes about (4 − h)/h steps. The rows per effective draw therefore do not depend on
h, and h is as large as its own bias allows.

1. A pilot run with weights from the anchor's Gaussian, widened, finds where the posterior really
   is.
2. New weights are computed from positions of the pilot. For skewed posteriors, as with rare
   classes, this leaves a tenth of the noise. A share of the first weights is kept, to cover tails
   that the pilot has not visited.
3. Pairs of chains at h and h/2 measure the joint bias of step size and noise (`pair.py`), and the
   noise per parameter. The noise is reduced until it inflates no variance by more than the budget,
   then h until the bias is within its budget.
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from ...anchor.anchor import Anchor
from ...core.supervision import is_short_of_time, stage
from ...dynamics import LeimkuhlerMatthews
from ...engine.kernel import BoundKernel
from ...geometry import GeometryChoice
from ...gradient import ControlVariate
from ...models.posterior import AbstractPosterior
from ...statistics.convergence import HEAVY_TAIL, pareto_k
from ...subsample import Measured, Preferential
from ...subsample.measured import MeasuredSelection
from ...subsample.weights import residual_weights
from ..account import Account, ErrorBudget
from ..base import PreparedMethod
from ..method import Method
from .pilot import Pilot, run_pairs

_PAIRS = 16
_PILOT_ROWS = 64
_PILOT_STEP = 0.5
_PILOT_NOISE = 0.1
# Coarse steps per run of pairs. A step size below _PILOT_STEP gets proportionally more of them.
_PILOT_LENGTH, _SHORT_LENGTH, _CHECK_LENGTH = 64, 32, 400
# Sizes grow by a large factor, since each size needs a compilation and a short run overestimates
# the noise of the worst parameter.
_SIZE_FACTOR = 4
# From this size on the rows dominate the cost of a step: smaller steps are as good as more rows.
_ENOUGH_ROWS = 256
_FIRST_STEP = 1.0
# If the pilot uses less than this share of the allowed bias, _FIRST_STEP is worth a check.
_SMALL_BIAS = 0.3
_SMALLEST_STEP = 1e-3
_MOST_CHECKS = 12
_WEIGHT_POSITIONS = 64  # positions of the pilot that the weights are averaged over
_FIRST_WEIGHTS_SHARE = 0.2
_LEAST_ROWS = 32
_NO_NOISE = 1e-12  # per coordinate; smaller than rounding errors
_LARGEST_ROW_SHARE = 0.25
_BURN_IN_TIME = 20  # burn-in steps times step size
_NOISE_SLACK = 1.5  # a step takes more rows if the noise exceeds its mean by this factor
_LARGEST_GROWTH = 16  # the most rows of a step, relative to the size
_OUT_OF_TIME = (
    "half of max_seconds passed before step size and gradient noise were within their budgets. "
    "Raise max_seconds."
)


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
        stage("computing row weights at the mode")
        first_weights = self._weights()
        stage("running pilot chains")
        pilot = self._pilot(first_weights)
        if pilot is None:
            self.why_not = "pilot runs with gradient noise failed at every step size"
            return None
        stage("computing row weights at the positions of the pilot chains")
        weights = self._weights(pilot, first_weights)
        stage("checking step size and gradient noise with pairs of chains")
        settled = self._settle(weights, pilot)
        if settled is None:
            return None
        step, rows_checked, checked, doubts = settled
        size = self._rows_for(checked, step)
        if (tail := _noise_tail(checked)) > HEAVY_TAIL:
            more = max(2 * size, rows_checked)
            self.reasons.append(
                f"the gradient noise has a heavy tail (k = {tail:.2f}): "
                f"{more} rows per step instead of {size}"
            )
            size = more
        method = self._method(weights, size, checked.noise_of_one_draw / size, step, take_all=True)
        kernel = self._kernel(method)
        self._explain(kernel, size, step, checked)
        account = Account(method, self.budget, tuple(self.reasons), doubts, checked.bias)
        start = jnp.asarray(checked.positions[:, -1], self.posterior.dtype)
        burn_in, thin = math.ceil(_BURN_IN_TIME / step), max(1, int(0.5 / step))
        rows_so_far = self.anchor.n_row_evals + self.n_row_evals
        return PreparedMethod(kernel, self.anchor, rows_so_far, account, start, burn_in, thin)

    def _settle(
        self, weights: np.ndarray, pilot: Pilot
    ) -> tuple[float, int, Pilot, tuple[str, ...]] | None:
        """Reduce noise and step size until both are within the budget.

        Returns the step size, the rows per step of the last check, the last check, and doubts.
        """
        step = _FIRST_STEP if self._excess_bias(pilot) < _SMALL_BIAS else _PILOT_STEP
        measured, size, short = pilot, _PILOT_ROWS, True
        for _ in range(_MOST_CHECKS):
            if is_short_of_time():
                return step, size, measured, (_OUT_OF_TIME,)
            length = _SHORT_LENGTH if short else _CHECK_LENGTH
            found = self._pairs(weights, measured, size, step, length)
            if found.failed:
                step /= 2
                continue
            measured, excess = found, self._excess_bias(found)
            allowed = _SIZE_FACTOR if short else _NOISE_SLACK
            excess_noise = self._rows_for(measured, step) / size / allowed
            if excess_noise > 1 and size < min(_ENOUGH_ROWS, self.posterior.n_rows / _SIZE_FACTOR):
                size, short = _SIZE_FACTOR * size, True
                continue
            # Too much noise spreads the chains out, and the measured noise is then an overestimate.
            row_share = self._rows_for(measured, _PILOT_STEP) / self.posterior.n_rows
            if row_share > (1 if excess_noise > 1 else _LARGEST_ROW_SHARE):
                share = "all" if row_share > 1 else f"{row_share:.0%} of"
                self.why_not = f"gradient noise would require {share} the rows in a step"
                return None
            if excess_noise > 1:
                step, short = step * max(0.25, 0.9 / excess_noise), True
            elif short:
                short = False
            elif excess > 1:
                step *= max(0.25, 0.9 * excess**-0.5)
            else:
                return step, size, measured, ()
        self.why_not = "no step size and number of rows keep the bias within its budget"
        return step, size, measured, (f"{self.why_not}.",)

    def _rows_for(self, pilot: Pilot, step: float) -> int:
        """Rows per step that keep the inflation of the worst parameter's variance in the budget."""
        # The control variates can be exact, as those of order 2 are in a linear regression.
        if pilot.noise_per_coordinate <= _NO_NOISE:
            return _LEAST_ROWS
        worst = max(pilot.noise.max(), pilot.noise_per_coordinate)
        inflation = step / self.stiffness / (4 - step) * worst
        rows_of_pilot = pilot.noise_of_one_draw / pilot.noise_per_coordinate
        rows = rows_of_pilot * inflation / self.budget.inflation
        return max(_LEAST_ROWS, 16 * math.ceil(rows / 16))

    def _explain(self, bound: BoundKernel, size: int, step: float, checked: Pilot) -> None:
        selection = bound.composition.selection
        assert isinstance(selection, MeasuredSelection), "the size follows the measured noise"
        p = selection.base.stream.probabilities()
        n_certain = selection.base.certain.shape[0]
        certain = f", {n_certain} of them the same in every step" if n_certain else ""
        whitened = self.stiffness == 1
        unit = "posterior standard deviations" if whitened else "units of the fastest direction"
        mean_change = np.abs(checked.bias.mean).max() / 2
        sd_change = np.abs(checked.bias.sd).max() / 2
        self.reasons += [
            f"control variates of order {self.order}, anchored {self.anchor.decrement or 0:.2g} "
            "standard deviations from the mode",
            f"{size} rows per step{certain}, and more if the measured noise requires it: gradient "
            f"noise may inflate a variance by at most {self.budget.inflation:.1%}",
            f"row weights from the noise at {_WEIGHT_POSITIONS} positions of a pilot run: "
            f"{1 / np.sum(p**2):,.0f} effective rows of {self.posterior.n_rows:,}",
            f"Leimkuhler–Matthews steps of {step:.3g} in {unit}: half the step size changes means "
            f"by {mean_change:.2g} standard deviations and standard deviations by {sd_change:.1%}",
        ]

    def _pilot(self, weights: np.ndarray) -> Pilot | None:
        """Run pairs from the mode, at the largest step size at which no chain fails."""
        at_mode = np.broadcast_to(np.asarray(self.anchor.position), (_PAIRS, 1, self.posterior.dim))
        step, before = _PILOT_STEP, Pilot.at(at_mode, _PILOT_NOISE * _PILOT_ROWS)
        while step > _SMALLEST_STEP:
            pilot = self._pairs(weights, before, _PILOT_ROWS, step, _PILOT_LENGTH)
            if not pilot.failed:
                return pilot
            step /= 4
        return None

    def _pairs(
        self, weights: np.ndarray, before: Pilot, size: int, step: float, length: int
    ) -> Pilot:
        """Run pairs with at least `size` rows per step, from the last positions of `before`."""
        method = self._method(weights, size, before.noise_of_one_draw / size, step, take_all=False)
        start = jnp.asarray(before.positions[:, -1], self.posterior.dtype)
        steps = math.ceil(length * max(1.0, _PILOT_STEP / step))
        burn_in = math.ceil(_BURN_IN_TIME / step)
        pilot = run_pairs(self._kernel(method), start, steps=steps, burn_in=burn_in, seed=self.seed)
        self.n_row_evals += pilot.n_row_evals
        return pilot

    def _excess_bias(self, pilot: Pilot) -> float:
        """The bias in excess of its Monte-Carlo error, relative to the allowed bias."""
        bias, budget = pilot.bias, self.budget
        mean = (np.abs(bias.mean) - bias.mean_error).max() / budget.mean_bias
        sd = (np.abs(bias.sd) - bias.sd_error).max() / budget.sd_bias
        return max(mean, sd)

    def _weights(
        self, pilot: Pilot | None = None, first_weights: np.ndarray | None = None
    ) -> np.ndarray:
        """Weights from positions of the pilot, or from the anchor's Gaussian without a pilot."""
        metric = self.geometry.prepare(self.posterior, self.anchor)
        self.n_row_evals += self.posterior.n_rows * (1 if pilot is None else _WEIGHT_POSITIONS)
        if pilot is None or first_weights is None:
            return np.asarray(
                residual_weights(self.posterior, self.anchor, self.order, metric), np.float64
            )
        visited = pilot.positions.reshape(-1, self.posterior.dim)
        chosen = visited[np.linspace(0, len(visited) - 1, _WEIGHT_POSITIONS).astype(int)]
        positions = jnp.asarray(chosen, self.posterior.dtype)
        new_weights = np.asarray(
            residual_weights(self.posterior, self.anchor, self.order, metric, positions=positions),
            np.float64,
        )
        share = _FIRST_WEIGHTS_SHARE
        return (1 - share) * _normalised(new_weights) + share * _normalised(first_weights)

    def _method(
        self, weights: np.ndarray, size: int, noise: float, step: float, *, take_all: bool
    ) -> Method:
        return Method(
            dynamics=LeimkuhlerMatthews(),
            gradient=ControlVariate(self.order),
            subsample=Preferential(weights, take_all=take_all),
            size=Measured(
                size,
                max(_NOISE_SLACK * noise, _NO_NOISE),
                max_size=min(_LARGEST_GROWTH * size, self.posterior.n_rows),
            ),
            geometry=self.geometry,
            step_size=step / self.stiffness,
        )

    def _kernel(self, method: Method) -> BoundKernel:
        prepared = method.prepare(self.posterior, self.anchor)
        self.n_row_evals += prepared.n_row_evals - self.anchor.n_row_evals
        return prepared.kernel


def _normalised(weights: np.ndarray) -> np.ndarray:
    """Return the weights scaled to sum 1; uniform weights if all are zero."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))


def _noise_tail(pilot: Pilot) -> float:
    """Pareto's k of the squared noise; 0 if there is no noise or ArviZ is not installed."""
    if not pilot.squared_noise.any():
        return 0.0
    try:
        return pareto_k(pilot.squared_noise)
    except ImportError:
        return 0.0
