"""The anchored plan: whitened Leimkuhler–Matthews steps, control variates of order 2, weights and size from pilot runs.

In coordinates u with θ = θ̂ + Cu, CCᵀ = Σ̂, the posterior looks like a standard Gaussian near its mode. There gradient noise of
variance v per coordinate inflates variances by h v/(4 − h), and an effective draw takes about (4 − h)/h steps. So the rows an
effective draw takes do not depend on h, and h is chosen as large as its own bias allows.

1. A pilot run with weights from the anchor's Gaussian, widened, finds where the posterior really is.
2. Weights are computed anew from positions of the pilot. Where the posterior is skewed, as with rare classes, that leaves a
   tenth of the noise. A share of the first weights is kept, against tails that the pilot has not seen.
3. Pairs of chains at h and h/2 measure the bias of the step and of the noise together (`pair.py`), and the noise by parameter.
   The noise is brought down until it inflates no variance by more than the budget, then h until the bias is within its own.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from .._account import Account, Budget
from .._anchor import Anchor
from .._errors import PreparationError
from .._kernel import Kernel
from .._method import Method, Prepared
from .._posterior import AbstractPosterior
from .._run import Run
from ..diagnose.convergence import HEAVY_TAIL, pareto_k
from ..dynamics import LeimkuhlerMatthews
from ..geometry import GeometryChoice
from ..gradient import ControlVariate
from ..subsample import Measured, Preferential
from ..subsample.measured import MeasuredSelection
from ..subsample.weights import residual_weights
from .pair import Pilot, run_pairs

_PAIRS = 16
_PILOT_ROWS = 64
_PILOT_STEP = 0.5
_PILOT_NOISE = 0.1
_PILOT, _MEASURE, _CHECK = 64, 32, 400  # steps of the pairs, and more of those that are smaller than the pilot's
_SIZE_FACTOR = 4  # each size is another compilation, and a short run overrates the noise of the worst parameter
_ENOUGH_ROWS = 256  # with so many, what a step costs is its rows: smaller steps serve as well as more rows
_FIRST_STEP = 1.0
_STEP_LEFT = 0.3  # of the bias allowed: with no more at the pilot's step, twice that step is worth a check
_SMALLEST_STEP = 1e-3
_MOST_CHECKS = 12
_POSITIONS = 64  # of the pilot, for the weights
_KEPT = 0.2  # of the first weights
_LEAST_ROWS = 32
_NO_NOISE = 1e-12  # per coordinate: rounding is more
_MOST_OF_ALL_ROWS = 0.25
_BURN_IN = 20  # in units of the step
_SLACK = 1.5  # noise above its mean by so much is met with more rows,
_MOST_TIMES = 16  # up to so many times as many


@dataclasses.dataclass
class Anchored:
    """The making of an anchored plan."""

    posterior: AbstractPosterior
    anchor: Anchor
    order: int
    geometry: GeometryChoice
    stiffness: float
    """The largest curvature in the coordinates of the geometry; steps h are in units of its inverse."""
    budget: Budget
    seed: int
    n_row_evals: int = 0
    reasons: list[str] = dataclasses.field(default_factory=list)

    def plan(self) -> Prepared | None:
        """The plan, or None where the noise asks for so many rows that all of them are the better choice."""
        first = self._weights()
        pilot = self._pilot(first)
        weights = self._weights(pilot, first)
        settled = self._settle(weights, pilot)
        if settled is None:
            return None
        step, rows_checked, checked, doubts = settled
        size = self._rows_for(checked, step)
        if (tail := _noise_tail(checked)) > HEAVY_TAIL:
            more = max(2 * size, rows_checked)
            self.reasons.append(
                f"the gradient noise has a heavy tail (k = {tail:.2f}): {more} rows where {size} would do otherwise"
            )
            size = more
        method = self._method(weights, size, checked.noise_of_one_draw / size, step, take_all=True)
        kernel = self._kernel(method)
        self._explain(kernel, size, step, checked)
        account = Account(method, self.budget, tuple(self.reasons), doubts, checked.bias)
        start = jnp.asarray(checked.positions[:, -1], self.posterior.dtype)
        burn_in, thin = math.ceil(_BURN_IN / step), max(1, int(0.5 / step))
        rows_so_far = self.anchor.n_row_evals + self.n_row_evals
        return Prepared(kernel, self.anchor, rows_so_far, account, start, burn_in, thin)

    def _settle(self, weights: np.ndarray, pilot: Pilot) -> tuple[float, int, Pilot, tuple[str, ...]] | None:
        """Noise and step brought down until both are within the budget: the step, the rows and run of its check, any doubt."""
        step = _FIRST_STEP if self._excess_bias(pilot) < _STEP_LEFT else _PILOT_STEP
        measured, size, short = pilot, _PILOT_ROWS, True
        for _ in range(_MOST_CHECKS):
            found = self._pairs(weights, measured, size, step, _MEASURE if short else _CHECK)
            if found.failed:
                step /= 2
                continue
            measured, excess = found, self._excess_bias(found)
            too_noisy = self._rows_for(measured, step) / size / (_SIZE_FACTOR if short else _SLACK)
            if too_noisy > 1 and size < min(_ENOUGH_ROWS, self.posterior.n_rows / _SIZE_FACTOR):
                size, short = _SIZE_FACTOR * size, True
                continue
            # Noise that is still too much spreads the chains, and they then see more of it than there is.
            of_all_rows = self._rows_for(measured, _PILOT_STEP) / self.posterior.n_rows
            if of_all_rows > (1 if too_noisy > 1 else _MOST_OF_ALL_ROWS):
                return None
            if too_noisy > 1:
                step, short = step * max(0.25, 0.9 / too_noisy), True
            elif short:
                short = False
            elif excess > 1:
                step *= max(0.25, 0.9 * excess**-0.5)
            else:
                return step, size, measured, ()
        return step, size, measured, ("no step size and no size were found that keep the bias within its budget.",)

    def _rows_for(self, pilot: Pilot, step: float) -> int:
        """Rows a step with which gradient noise inflates the worst parameter's variance by no more than the budget."""
        if pilot.noise_per_coordinate <= _NO_NOISE:  # the second order is all there is, as in a linear regression
            return _LEAST_ROWS
        worst = max(pilot.noise.max(), pilot.noise_per_coordinate)
        inflation = step / self.stiffness / (4 - step) * worst
        rows = pilot.noise_of_one_draw / pilot.noise_per_coordinate * inflation / self.budget.inflation
        return max(_LEAST_ROWS, 16 * math.ceil(rows / 16))

    def _explain(self, kernel: Kernel, size: int, step: float, checked: Pilot) -> None:
        selection = kernel.selection
        assert isinstance(selection, MeasuredSelection), "the size follows the noise"
        p = selection.base.law.probabilities()
        certain = selection.base.certain.shape[0]
        of_which = f", {certain} of them the same in every step" if certain else ""
        self.reasons += [
            f"control variates of order {self.order} around the mode, {self.anchor.decrement or 0:.2g} standard deviations off",
            f"{size} rows a step{of_which}, and more where the noise measured on the run asks for them: "
            f"gradient noise is to inflate no variance by more than {self.budget.inflation:.1%}",
            f"rows by what they add to the noise at {_POSITIONS} positions of a pilot run: as uneven as if only "
            f"{1 / np.sum(p**2):,.0f} of {self.posterior.n_rows:,} rows mattered",
            f"Leimkuhler–Matthews steps of {step:.3g} in "
            + ("posterior standard deviations" if self.stiffness == 1 else "units of the fastest direction")
            + f", checked against half that: means move by {np.abs(checked.bias.mean).max() / 2:.2g} standard deviations, "
            f"standard deviations by {np.abs(checked.bias.sd).max() / 2:.1%}",
        ]

    def _pilot(self, weights: np.ndarray) -> Pilot:
        """A run from the mode, at the first step size at which its chains hold."""
        at_mode = np.broadcast_to(np.asarray(self.anchor.position), (_PAIRS, 1, self.posterior.dim))
        step, before = _PILOT_STEP, Pilot.at(at_mode, _PILOT_NOISE * _PILOT_ROWS)
        while step > _SMALLEST_STEP:
            pilot = self._pairs(weights, before, _PILOT_ROWS, step, _PILOT)
            if not pilot.failed:
                return pilot
            step /= 4
        raise PreparationError("pilot runs from the mode failed at every step size. Check the model: is its posterior proper?")

    def _pairs(self, weights: np.ndarray, before: Pilot, size: int, step: float, length: int) -> Pilot:
        """Pairs that start where those `before` ended, with so many rows, and more where the noise is above its mean."""
        method = self._method(weights, size, before.noise_of_one_draw / size, step, take_all=False)
        start = jnp.asarray(before.positions[:, -1], self.posterior.dtype)
        steps = math.ceil(length * max(1.0, _PILOT_STEP / step))
        ran = run_pairs(self._kernel(method), start, steps=steps, burn_in=math.ceil(_BURN_IN / step), seed=self.seed)
        self.n_row_evals += ran.n_row_evals
        return ran

    def _excess_bias(self, pilot: Pilot) -> float:
        """The bias that is beyond its Monte-Carlo error, in units of what is allowed."""
        bias, budget = pilot.bias, self.budget
        mean = (np.abs(bias.mean) - bias.mean_error).max() / budget.mean_bias
        sd = (np.abs(bias.sd) - bias.sd_error).max() / budget.sd_bias
        return max(mean, sd)

    def _weights(self, pilot: Pilot | None = None, first: np.ndarray | None = None) -> np.ndarray:
        metric = self.geometry.prepare(self.posterior, self.anchor)
        self.n_row_evals += self.posterior.n_rows * (1 if pilot is None else _POSITIONS)
        if pilot is None or first is None:
            return np.asarray(residual_weights(self.posterior, self.anchor, self.order, metric), np.float64)
        visited = pilot.positions.reshape(-1, self.posterior.dim)
        chosen = visited[np.linspace(0, len(visited) - 1, _POSITIONS).astype(int)]
        positions = jnp.asarray(chosen, self.posterior.dtype)
        found = np.asarray(residual_weights(self.posterior, self.anchor, self.order, metric, positions=positions), np.float64)
        return (1 - _KEPT) * _shares(found) + _KEPT * _shares(first)

    def _method(self, weights: np.ndarray, size: int, noise: float, step: float, *, take_all: bool) -> Method:
        return Method(
            dynamics=LeimkuhlerMatthews(),
            gradient=ControlVariate(self.order),
            subsample=Preferential(weights, take_all=take_all),
            size=Measured(size, max(_SLACK * noise, _NO_NOISE), max_size=min(_MOST_TIMES * size, self.posterior.n_rows)),
            geometry=self.geometry,
            step_size=step / self.stiffness,
        )

    def _kernel(self, method: Method) -> Kernel:
        prepared = method.prepare(self.posterior, self.anchor)
        self.n_row_evals += prepared.n_row_evals - self.anchor.n_row_evals
        assert isinstance(prepared.kernel, Kernel), "a composition is a Kernel"
        return prepared.kernel


def _shares(weights: np.ndarray) -> np.ndarray:
    """The same in proportion, with sum 1; all alike where none of them counts."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))


def _noise_tail(pilot: Pilot) -> float:
    """Pareto's k of the squared noise; zero where there is no noise, or no ArviZ to tell."""
    if not pilot.squared_noise.any():
        return 0.0
    try:
        return pareto_k(pilot.squared_noise)
    except ImportError:
        return 0.0


def account_after(run: Run, account: Account | None, stopped_by: str | None) -> Account | None:
    """The account with what the run itself has shown: the noise it measured, and whether it got to its end."""
    if account is None:
        return None
    doubts = account.doubts
    if stopped_by is not None:
        doubts += (f"{stopped_by} ended the run before it had the effective draws asked for.",)
    kernel = run.kernel
    if not isinstance(kernel, Kernel) or not isinstance(kernel.selection, MeasuredSelection) or not run.completed:
        return dataclasses.replace(account, doubts=doubts)
    measure = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64).sum(axis=0), run.state.chains.memory.selection)
    variance = run.variances()
    step = float(run.kernel.schedule(jnp.int32(0)))
    inflation = step / (4 - step) * measure.sum_by_parameter / measure.steps / variance
    return dataclasses.replace(account, doubts=doubts, inflation=inflation)
