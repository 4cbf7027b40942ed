"""Tuning: choose the step size, the size and the noise threshold of a method."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._anchor.anchor import Anchor, AnchorLevel
from ._core.errors import InvalidInput, Outcome, PreparationError, check_int, check_number
from ._core.statistics import ThinnedHistory
from ._engine.kernel import BoundKernel
from ._engine.run import DrawSink, Run, chain_keys
from .diagnose.ksd import exact_gradients, in_units, ksd, stochastic_gradients, thinned
from .geometry import Dense
from .gradient.control_variate import ControlVariate
from .methods.abstract import prepare_anchor
from .methods.method import Method
from .models.posterior import AbstractPosterior, check_in_memory, check_posterior
from .schedule import as_schedule, in_precision
from .subsample.bounded_noise import BoundedNoise
from .subsample.selection import AbstractStaticSelection
from .subsample.weights import Preferential

__all__ = ["Budget", "Candidate", "Round", "Tuned", "grid", "tune"]


@dataclasses.dataclass(frozen=True)
class Budget:
    """Cost limit of `tune`, in rows or in seconds.

    One-off costs before the first step are not counted: the anchor, the weights, compilation.

    **Arguments:**

    - `rows`: rows touched by the chains and by the gradients that score them.
    - `seconds`: time in which the chains run.
    """

    rows: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.rows is None) == (self.seconds is None):
            found = f"rows={self.rows}, seconds={self.seconds}"
            raise InvalidInput("budget", "be in rows or in seconds", found)
        if self.rows is not None:
            check_int("rows", self.rows, 1)
        else:
            check_number("seconds", self.seconds, 0, low_open=True)


FACTORS = tuple(4.0**power for power in range(-3, 3))


def grid(
    method: Method, factors: Sequence[float] = FACTORS, batch_sizes: Sequence[int] | None = None
) -> list[Method]:
    """Copies of `method` whose step size, a number, is multiplied by each of `factors`.

    Every step size is combined with every one of `batch_sizes`, by default that of `method`.
    """
    if not isinstance(method, Method):
        raise InvalidInput("method", "be a Method", method, "See tallmc.Method.")
    step_size = method.step_size
    if not isinstance(step_size, int | float):
        cure = "To tune a schedule, pass a list of methods to tune."
        raise InvalidInput("method", "have a number for its step size", step_size, cure)
    steps = [step_size * check_number("factors", factor, 0, low_open=True) for factor in factors]
    all_sizes = [method.batch_size] if batch_sizes is None else batch_sizes
    return [
        dataclasses.replace(method, step_size=step, batch_size=size)
        for size in all_sizes
        for step in steps
    ]


# The score of tuning: kernel Stein discrepancy in units of the posterior's spread.
#
# The kernel assumes coordinates of scale 1. The score uses u = C⁻¹θ with CCᵀ = Σ̂ from the anchor.
# If the anchor has no Hessian, C is the diagonal of the standard deviations of the candidates'
# first draws (the median over candidates).
#
# Each gradient is estimated from about 10 d rows by control variates around the anchor. If the
# anchor has a Hessian, they are of order 2 with matching weights. Near the anchor the noise is
# small compared with the variance of a coordinate, which is 1, for data of any length N. The noise
# of the simple estimator would be N/n and would hide the discrepancy. All candidates use the same
# estimator.


_ROWS_PER_DIMENSION = 10
_LEAST_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Score:
    """The discrepancy of positions. `units` (C) may be None until the first draws define it."""

    posterior: AbstractPosterior
    estimator: BoundKernel | None  # The gradient estimator; None if exact gradients cost no more
    rows_per_draw: int
    units: Float[np.ndarray, "d d"] | Float[np.ndarray, " d"] | None
    n_row_evals_preparation: int

    @classmethod
    def around(cls, posterior: AbstractPosterior, anchor: Anchor) -> Score:
        rows = min(max(_ROWS_PER_DIMENSION * posterior.dim, _LEAST_ROWS), posterior.n_rows)
        units = None if anchor.factor is None else np.asarray(anchor.factor, np.float64)
        if rows == posterior.n_rows:
            return cls(posterior, None, rows, units, 0)
        method = Method(gradient=ControlVariate(), batch_size=rows, step_size=1.0)
        if anchor.hessian is not None:
            weights = Preferential("residual", take_all=True)
            method = dataclasses.replace(
                method, gradient=ControlVariate(order=2), subsample=weights, geometry=Dense()
            )
        prepared = method.prepare(posterior, anchor)
        own_rows = prepared.n_row_evals - anchor.n_row_evals
        return cls(posterior, prepared.kernel, rows, units, own_rows)

    def in_units_of(self, candidates: Sequence[Float[np.ndarray, "_ d"]]) -> Score:
        """The score in units of the candidates' median sds, or of 1 where draws define none."""
        sds = [draws.std(axis=0) for draws in candidates if len(draws)]
        units = np.median(sds, axis=0) if sds else np.zeros(self.posterior.dim)
        return dataclasses.replace(self, units=np.where(units > 0, units, 1.0))

    def __call__(self, positions: Float[np.ndarray, "K d"]) -> float:
        """The discrepancy; infinite if a position or a gradient is not finite."""
        assert self.units is not None, "units are set before the first score"
        if not np.isfinite(positions).all():
            return np.inf
        if self.estimator is None:
            gradients = exact_gradients(self.posterior, positions)
        else:
            kernel, rows = self.estimator.composition, self.posterior.rows
            assert isinstance(kernel.selection, AbstractStaticSelection), "the size is fixed"
            gradients = stochastic_gradients(kernel.gradient, kernel.selection, rows, positions)
        if not np.isfinite(gradients).all():
            return np.inf
        return ksd(*in_units(self.units, positions, gradients))


# The chains of one candidate: each round continues them for a share of the budget.
#
# Only a thinned history of their draws is kept.


_BURN_IN = 1 / 11  # share of all draws: a tenth of the rest, as in `sample` from an anchor
_SEGMENT_FLOATS = 2**22
_COST_DRAWS = 10_000  # the cost per draw is averaged over this many draws


class Trial:
    """The state of one candidate across rounds."""

    def __init__(
        self,
        method: Method,
        kernel: BoundKernel,
        start: Float[Array, "chains d"],
        seed: int,
        most: int,
    ):
        self.method = method
        self.sink = DrawSink()
        keys = chain_keys(seed, len(start))
        self.run = Run(kernel, keys, start, burn_in=0, thin=1, n_draws=0, sink=self.sink)
        self.run.compile()
        self.history = ThinnedHistory(most, *start.shape)
        self.rounds, self.ksd = 0, np.inf
        self.scoring_rows, self.seconds = 0, 0.0

    @property
    def failed(self) -> bool:
        """Whether any chain failed. The draws of the other chains are then not scored either."""
        return bool(np.any(np.asarray(self.run.state.outcome) != Outcome.OK))

    @property
    def n_row_evals(self) -> int:
        return self.run.rows_touched() + self.scoring_rows

    def run_for_rows(self, rows: float) -> None:
        kernel, cost = self.run.kernel, None
        if kernel.rows_per_step is not None:
            steps = int(kernel.schedule.steps_until(_COST_DRAWS))
            passes = int(kernel.passes_before(np.asarray(steps)))
            rows_per_chain = kernel.rows_per_step * steps + self.run.rows.n_rows * passes
            cost = len(self.run.start) * rows_per_chain / _COST_DRAWS
        self._run_for(rows, self.run.rows_touched, cost)

    def run_for_seconds(self, seconds: float) -> None:
        if self.run.step == 0:
            self._advance(1)  # the first step may still compile; it is not timed
        self._run_for(seconds, time.perf_counter, None)

    def draws(self, most: int) -> Float[np.ndarray, "K d"]:
        """At most `most` draws of all chains, evenly spaced, without the burn-in.

        Their number is a power of two, so that candidates mostly share compiled programs.
        """
        kept = self.history.kept[:, int(_BURN_IN * self.history.kept.shape[1]) :]
        return thinned(kept, power_of_two(min(most, kept.shape[0] * kept.shape[1])))

    def rate(self, score: Score, most: int) -> None:
        """End a round: score at most `most` draws."""
        draws = self.draws(most)
        self.rounds, self.ksd = self.rounds + 1, np.inf
        if len(draws) and not self.failed:
            self.ksd = score(draws)
            self.scoring_rows += len(draws) * score.rows_per_draw

    def _run_for(
        self, amount: float, spent: Callable[[], float], cost_per_draw: float | None
    ) -> None:
        """Run until `spent` has grown by `amount`.

        An unknown cost per draw is measured as the number of draws doubles.
        """
        clock, began, first = time.perf_counter(), spent(), self.run.completed
        while not self.failed:
            left, draws = amount - (spent() - began), self.run.completed - first
            if cost_per_draw is not None:
                fitting = int(left / cost_per_draw)
            else:
                fitting = min(draws, int(left * draws / (amount - left))) if draws else 1
            if fitting < 1:
                break
            self._advance(min(fitting, max(1, _SEGMENT_FLOATS // self.run.start.size)))
        self.seconds += time.perf_counter() - clock

    def _advance(self, n_draws: int) -> None:
        self.run.run_to(self.run.completed + n_draws)
        self.history.add(self.run.positions())
        self.sink.forget()


def power_of_two(most: int) -> int:
    """The largest power of two up to `most`, or zero if `most` is zero."""
    return 1 << (most.bit_length() - 1) if most else 0


# Successive halving: run many candidates briefly, then the better ones for longer.
#
# In each round the chains of every remaining candidate run for an equal share of the round's
# budget. Their draws so far are scored by kernel Stein discrepancy. The best 1/η of the candidates
# continue from where they are. All rounds have the same budget, so each survivor gets η times as
# much as before. This is MAMBA (Coullon, South and Nemeth, 2023). If η is at least the number of
# candidates, there is one round: the grid search of nemeth-2021, section 4.
#
# Effective sample size and R-hat cannot distinguish a step size that is too large from one that is
# right. The discrepancy detects bias and slow mixing alike.


_MOST_DIM_WITH_HESSIAN = 200
_MOST_SCORED = 1024
_LEAST_SCORED = 16


class Candidate(NamedTuple):
    """The result of one candidate."""

    method: Method
    rounds: int
    """Rounds in which the candidate ran."""
    ksd: float
    """Discrepancy at the end of its last round; infinite if a chain failed."""
    n_steps: int
    """Steps per chain."""
    n_row_evals: int
    """Rows touched by its chains and by their scoring."""


class Round(NamedTuple):
    """Round `number` of `of`, with its candidates, best first."""

    number: int
    of: int
    candidates: tuple[Candidate, ...]


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Result of `tune`: the chosen method and its discrepancy."""

    method: Method
    ksd: float
    candidates: tuple[Candidate, ...]
    """All candidates: those with most rounds first, then by discrepancy."""
    anchor: Anchor
    """The anchor that was used. Pass it to `sample` to save its cost."""
    n_row_evals_tuning: int
    """Rows touched by the chains of the candidates and by their scoring."""
    n_row_evals_preparation: int
    """Rows touched to prepare the anchor, the weights and so on."""


def tune(
    posterior: AbstractPosterior,
    method: Method | Sequence[Method],
    *,
    budget: Budget,
    factors: Sequence[float] | None = None,
    batch_sizes: Sequence[int] | None = None,
    keep_one_in: int = 3,
    chains: int = 4,
    seed: int = 0,
    anchor: Anchor | None = None,
    callback: Callable[[Round], None] | None = None,
) -> Tuned:
    """Choose the step size, and optionally the size, of a method by kernel Stein discrepancy.

    With a budget in rows, the same seed gives the same result.

    **Arguments:**

    - `method`: the method to tune, or a list of methods to choose from.
    - `budget`: the cost limit.
    - `factors`: factors that multiply the step size of `method`. Defaults to 4⁻³ to 4².
    - `batch_sizes`: batch sizes to try. Defaults to that of `method`.
    - `keep_one_in`: η, the reciprocal of the share of candidates that each round keeps.
    - `chains`: chains per candidate.
    - `anchor`: an anchor of `posterior`; found by `find_anchor` if None.
    - `callback`: called with a `Round` after each round.

    **Raises:** `PreparationError` if every candidate fails.

    >>> import tallmc
    >>> X, y = [[1.0], [2.0]], [0.0, 1.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=10.0, noise_variance=1.0)
    >>> method, budget = tallmc.methods.sgld_cv(step_size=0.01, batch_size=1), Budget(rows=10_000)
    >>> tune(posterior, method, factors=[1.0, 10.0], budget=budget).method.step_size
    0.1
    """
    check_posterior(posterior)
    cure = "The default method tunes itself; use sample()."
    check_in_memory(posterior, "candidates run side by side", cure)
    methods = _candidates(method, factors, batch_sizes)
    if not isinstance(budget, Budget):
        cure = "For example Budget(rows=10_000_000) or Budget(seconds=60)."
        raise InvalidInput("budget", "be a Budget", budget, cure)
    keep_one_in = check_int("keep_one_in", keep_one_in, 2)
    chains, seed = check_int("chains", chains, 1), check_int("seed", seed, 0, 2**32 - 1)
    if callback is not None and not callable(callback):
        raise InvalidInput("callback", "be callable with a Round", callback)

    anchor, anchor_rows = _shared_anchor(posterior, methods, anchor)
    score, rounds = Score.around(posterior, anchor), _number_of_rounds(len(methods), keep_one_in)
    least = rounds * len(methods) * 2 * _LEAST_SCORED * score.rows_per_draw
    if budget.rows is not None and budget.rows < least:
        rule = f"be at least {least} rows for {len(methods)} candidates in {rounds} rounds"
        raise InvalidInput("budget", rule, budget.rows)
    kernels, kernel_rows = _prepared(posterior, methods, anchor, seed)
    start = jnp.broadcast_to(anchor.position, (chains, posterior.dim))
    trials = [
        Trial(candidate, kernel, start, seed, _MOST_SCORED)
        for candidate, kernel in zip(methods, kernels, strict=True)
    ]

    remaining = trials
    for number in range(1, rounds + 1):
        share = _unspent(budget, trials) / ((rounds + 1 - number) * len(remaining))
        score = _run_round(remaining, share, budget, score)
        remaining = sorted(remaining, key=lambda trial: trial.ksd)
        if callback is not None:
            callback(Round(number, rounds, tuple(map(_as_candidate, remaining))))
        kept = remaining[: math.ceil(len(remaining) / keep_one_in)]
        remaining = [trial for trial in kept if math.isfinite(trial.ksd)]
        if not remaining:
            raise PreparationError(
                f"every candidate failed in round {number}: a chain reached a non-finite position, "
                "or the share of a candidate was too small for one step. "
                "Give smaller step sizes, larger sizes, or a larger budget."
            )
        if len(remaining) == 1:
            break
    best = remaining[0]
    ranked = sorted(trials, key=lambda trial: (-trial.rounds, trial.ksd))
    rows = sum(trial.n_row_evals for trial in trials)
    preparation = anchor_rows + score.n_row_evals_preparation + kernel_rows
    candidates = tuple(map(_as_candidate, ranked))
    return Tuned(best.method, best.ksd, candidates, anchor, rows, preparation)


def _candidates(
    method: Method | Sequence[Method],
    factors: Sequence[float] | None,
    batch_sizes: Sequence[int] | None,
) -> Sequence[Method]:
    if isinstance(method, Method):
        factors = FACTORS if factors is None else factors
        methods: Sequence[Method] = grid(method, factors, batch_sizes)
    elif isinstance(method, Sequence) and all(isinstance(item, Method) for item in method):
        methods = method
        if factors is not None or batch_sizes is not None:
            rule, given = "be left out with a list of methods", (factors, batch_sizes)
            raise InvalidInput("factors and batch_sizes", rule, given)
    else:
        raise InvalidInput("method", "be a Method, or a list of them", method, "See tallmc.Method.")
    if len(methods) < 2:
        parameters = "method, factors and batch_sizes"
        raise InvalidInput(parameters, "give at least two candidates", len(methods))
    return methods


def _shared_anchor(
    posterior: AbstractPosterior, methods: Sequence[Method], anchor: Anchor | None
) -> tuple[Anchor, int]:
    """One anchor for all methods, and the rows touched to find it.

    In low dimension the anchor has a Hessian, which gives the score its units.
    """
    needs = max(AnchorLevel.MODE, *(method.needs for method in methods))
    if anchor is None and posterior.dim <= _MOST_DIM_WITH_HESSIAN:
        needs = AnchorLevel.HESSIAN
    found, rows = prepare_anchor(posterior, anchor, needs)
    assert found is not None, "the level is at least MODE"
    return found, rows


def _prepared(
    posterior: AbstractPosterior, methods: Sequence[Method], anchor: Anchor, seed: int
) -> tuple[list[BoundKernel], int]:
    """The kernel of each method, and the rows touched without those of the anchor.

    Methods that differ only in the step size share everything else.
    """
    kernels: list[BoundKernel] = []
    rows = 0
    for number, method in enumerate(methods):
        alike = (k for k in range(number) if _differ_in_step_only(methods[k], method))
        earlier = next(alike, None)
        if earlier is None:
            prepared = method.prepare(posterior, anchor, seed=seed)
            kernels.append(prepared.kernel)
            rows += prepared.n_row_evals - anchor.n_row_evals
        else:
            schedule = in_precision(as_schedule(method.step_size), posterior.dtype)
            same = kernels[earlier]
            kernels.append(eqx.tree_at(lambda bound: bound.kernel.schedule, same, schedule))
    return kernels, rows


def _differ_in_step_only(one: Method, other: Method) -> bool:
    if isinstance(one.batch_size, BoundedNoise) and one.batch_size.noise_threshold is None:
        return False  # the pilot runs of an adaptive size depend on the step size
    parts = (field.name for field in dataclasses.fields(one) if field.name != "step_size")
    return all(getattr(one, part) is getattr(other, part) for part in parts)


def _number_of_rounds(candidates: int, keep_one_in: int) -> int:
    rounds = 0
    while candidates > 1:
        candidates, rounds = math.ceil(candidates / keep_one_in), rounds + 1
    return rounds


def _unspent(budget: Budget, trials: list[Trial]) -> float:
    if budget.rows is not None:
        return budget.rows - sum(trial.n_row_evals for trial in trials)
    assert budget.seconds is not None, "a budget is in rows or in seconds"
    return budget.seconds - sum(trial.seconds for trial in trials)


def _run_round(trials: list[Trial], share: float, budget: Budget, score: Score) -> Score:
    """Run and score each trial. Scoring uses at most half of a share in rows."""
    most = _MOST_SCORED
    if budget.rows is not None:
        most = min(most, power_of_two(int(share / (2 * score.rows_per_draw))))
        share -= most * score.rows_per_draw
    for trial in trials:
        (trial.run_for_rows if budget.rows is not None else trial.run_for_seconds)(share)
    if score.units is None:
        score = score.in_units_of([trial.draws(most) for trial in trials if not trial.failed])
    for trial in trials:
        trial.rate(score, most)
    return score


def _as_candidate(trial: Trial) -> Candidate:
    return Candidate(trial.method, trial.rounds, trial.ksd, trial.run.step, trial.n_row_evals)
