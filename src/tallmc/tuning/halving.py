"""Successive halving: many candidates for a short while, the better ones for longer, until one is left.

The chains of every candidate run for an equal share of the budget. Their draws so far are scored by kernel Stein discrepancy, the
best 1/η go on from where they are, and the next round shares as much among them: each gets η times more. This is MAMBA (Coullon,
South and Nemeth, 2023). With η as large as the number of candidates there is one round: the grid of nemeth-2021, section 4.

Effective sample size and R-hat cannot tell a step that is too large from one that is right; the discrepancy sees bias and slow
mixing alike. `score.py` says how it is measured.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from .._anchor import Anchor, Needs
from .._errors import InvalidInput, PreparationError, check_int
from .._kernel import AbstractKernel
from .._method import Method, prepare_anchor
from .._posterior import AbstractPosterior
from ..schedule import as_schedule, in_precision
from ..subsample.size import Adaptive
from .budget import Budget
from .grid import FACTORS, grid
from .score import Score
from .trial import Trial, power_of_two

_MOST_DIM_WITH_HESSIAN = 200
_MOST_SCORED = 1024
_LEAST_SCORED = 16


class Candidate(NamedTuple):
    """What became of one candidate."""

    method: Method
    rounds: int
    """Rounds it was in."""
    ksd: float
    """At the end of its last round; infinite if a chain failed."""
    n_steps: int
    """Of each chain."""
    n_row_evals: int
    """Rows touched by its chains and to score them."""


class Round(NamedTuple):
    """What a callback hears after each round."""

    number: int
    of: int
    candidates: tuple[Candidate, ...]
    """Those that were in it, best first."""


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The method that was chosen, and from what."""

    method: Method
    ksd: float
    candidates: tuple[Candidate, ...]
    """All of them, best first: those that were in more rounds, of these the ones with a smaller discrepancy."""
    anchor: Anchor
    """Found on the way: pass it on to `sample`."""
    n_row_evals_tuning: int
    """Rows touched by the candidates' chains and to score them."""
    n_row_evals_preparation: int
    """Rows touched to find the anchor, the weights and so on."""


def tune(
    posterior: AbstractPosterior,
    method: Method | Sequence[Method],
    *,
    budget: Budget,
    factors: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    keep_one_in: int = 3,
    chains: int = 4,
    seed: int = 0,
    anchor: Anchor | None = None,
    callback: Callable[[Round], None] | None = None,
) -> Tuned:
    """Choose the step size, and where wanted the size, of `method` by kernel Stein discrepancy, within `budget`.

    The candidates are `method` with its step size times each of `factors` (4⁻³ to 4² unless given) and each of `sizes`, or the
    methods of a list. `keep_one_in` is η. `callback` hears a `Round` after each. With a budget in rows, the same seed gives the
    same answer.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> posterior = tallmc.models.linear_regression(x, x @ [1.0, -1.0], prior_variance=10.0)
    >>> tuned = tune(posterior, tallmc.sgld_cv(step_size=1e-3, size=20), budget=Budget(rows=1_000_000))
    >>> tuned.method.step_size
    0.00025
    """
    if not isinstance(posterior, AbstractPosterior):
        raise InvalidInput("posterior", "be a tallmc posterior", type(posterior).__name__, "See tallmc.Posterior, tallmc.models.")
    methods = _candidates(method, factors, sizes)
    if not isinstance(budget, Budget):
        raise InvalidInput("budget", "be a Budget", budget, "As Budget(rows=10_000_000) or Budget(seconds=60).")
    keep_one_in = check_int("keep_one_in", keep_one_in, 2)
    chains, seed = check_int("chains", chains, 1), check_int("seed", seed, 0, 2**32 - 1)
    if callback is not None and not callable(callback):
        raise InvalidInput("callback", "be callable with a Round", callback)

    anchor, rows_of_anchor = _shared_anchor(posterior, methods, anchor)
    score, rounds = Score.around(posterior, anchor), _number_of_rounds(len(methods), keep_one_in)
    least = rounds * len(methods) * 2 * _LEAST_SCORED * score.rows_per_draw
    if budget.rows is not None and budget.rows < least:
        raise InvalidInput("budget", f"be at least {least} rows for {len(methods)} candidates in {rounds} rounds", budget.rows)
    kernels, rows_of_kernels = _prepared(posterior, methods, anchor, seed)
    start = jnp.broadcast_to(anchor.position, (chains, posterior.dim))
    trials = [Trial(of, kernel, start, seed, _MOST_SCORED) for of, kernel in zip(methods, kernels, strict=True)]

    left = trials
    for number in range(1, rounds + 1):
        share = _unspent(budget, trials) / ((rounds + 1 - number) * len(left))
        score = _play(left, share, budget, score)
        left = sorted(left, key=lambda trial: trial.ksd)
        if callback is not None:
            callback(Round(number, rounds, tuple(map(_record, left))))
        left = [trial for trial in left[: math.ceil(len(left) / keep_one_in)] if math.isfinite(trial.ksd)]
        if not left:
            raise PreparationError(
                f"every candidate failed in round {number}: a chain reached a position that is not finite, or none of its steps "
                "fitted in its share. Give smaller step sizes, larger sizes, or a larger budget."
            )
        if len(left) == 1:
            break
    best = left[0]
    everyone = tuple(_record(trial) for trial in sorted(trials, key=lambda trial: (-trial.rounds, trial.ksd)))
    rows = sum(trial.n_row_evals for trial in trials)
    preparation = rows_of_anchor + score.n_row_evals_preparation + rows_of_kernels
    return Tuned(best.method, best.ksd, everyone, anchor, rows, preparation)


def _candidates(
    method: Method | Sequence[Method], factors: Sequence[float] | None, sizes: Sequence[int] | None
) -> Sequence[Method]:
    if isinstance(method, Method):
        methods: Sequence[Method] = grid(method, FACTORS if factors is None else factors, sizes)
    elif isinstance(method, Sequence) and all(isinstance(one, Method) for one in method):
        methods = method
        if factors is not None or sizes is not None:
            raise InvalidInput("factors and sizes", "be left out with a list of methods", (factors, sizes))
    else:
        raise InvalidInput("method", "be a Method, or a list of them", method, "See tallmc.Method.")
    if len(methods) < 2:
        raise InvalidInput("method, factors and sizes", "give at least two candidates", len(methods))
    return methods


def _shared_anchor(posterior: AbstractPosterior, methods: Sequence[Method], anchor: Anchor | None) -> tuple[Anchor, int]:
    """An anchor for all methods, and the rows that took. In few dimensions with a Hessian, which gives the score its units."""
    needs = max(Needs.MODE, *(method.needs for method in methods))
    if anchor is None and posterior.dim <= _MOST_DIM_WITH_HESSIAN:
        needs = Needs.HESSIAN
    found, rows = prepare_anchor(posterior, anchor, needs)
    assert found is not None, "a mode was asked for"
    return found, rows


def _prepared(
    posterior: AbstractPosterior, methods: Sequence[Method], anchor: Anchor, seed: int
) -> tuple[list[AbstractKernel], int]:
    """Each method's kernel, and the rows that took beside the anchor. Methods that differ in their step only share the rest."""
    kernels: list[AbstractKernel] = []
    rows = 0
    for number, method in enumerate(methods):
        like = next((k for k in range(number) if _differ_in_step_only(methods[k], method)), None)
        if like is None:
            prepared = method.prepare(posterior, anchor, seed=seed)
            kernels.append(prepared.kernel)
            rows += prepared.n_row_evals - anchor.n_row_evals
        else:
            schedule = in_precision(as_schedule(method.step_size), posterior.dtype)
            kernels.append(dataclasses.replace(kernels[like], schedule=schedule))
    return kernels, rows


def _differ_in_step_only(one: Method, other: Method) -> bool:
    if isinstance(one.size, Adaptive) and one.size.noise_threshold is None:
        return False  # its pilot runs depend on the step
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
    assert budget.seconds is not None, "a budget is in one of the two"
    return budget.seconds - sum(trial.seconds for trial in trials)


def _play(trials: list[Trial], share: float, budget: Budget, score: Score) -> Score:
    """A round: run and score each. Of a share in rows at most half goes into the score."""
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


def _record(trial: Trial) -> Candidate:
    return Candidate(trial.method, trial.rounds, trial.ksd, trial.run.step, trial.n_row_evals)
