"""Successive halving: run many candidates briefly, then the better ones for longer.

In each round the chains of every remaining candidate run for an equal share of the round's budget.
Their draws so far are scored by kernel Stein discrepancy. The best 1/η of the candidates continue
from where they are. All rounds have the same budget, so each survivor gets η times as much as
before. This is MAMBA (Coullon, South and Nemeth, 2023). If η is at least the number of candidates,
there is one round: the grid search of nemeth-2021, section 4.

Effective sample size and R-hat cannot distinguish a step size that is too large from one that is
right. The discrepancy detects bias and slow mixing alike. `score.py` describes how it is measured.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp

from ..anchor.anchor import Anchor, AnchorLevel
from ..core.errors import InvalidInput, PreparationError, check_int
from ..engine.kernel import BoundKernel
from ..methods.base import prepare_anchor
from ..methods.method import Method
from ..models.posterior import AbstractPosterior, check_in_memory, check_posterior
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
    """The result of one candidate.

    **Arguments:**

    - `method`: the candidate.
    - `rounds`: the number of rounds in which the candidate ran.
    - `ksd`: the discrepancy at the end of its last round; infinite if a chain failed.
    - `n_steps`: steps per chain.
    - `n_row_evals`: rows touched by its chains and by their scoring.

    >>> import tallmc
    >>> method = tallmc.sgld(step_size=0.1, size=10)
    >>> Candidate(method, rounds=2, ksd=0.1, n_steps=100, n_row_evals=4000).ksd
    0.1
    """

    method: Method
    rounds: int
    ksd: float
    n_steps: int
    n_row_evals: int


class Round(NamedTuple):
    """The argument of the callback of `tune`, which is called after each round.

    **Arguments:**

    - `number`: the number of the round, from 1.
    - `of`: the number of rounds.
    - `candidates`: the candidates of this round, best first.

    >>> Round(number=1, of=2, candidates=()).of
    2
    """

    number: int
    of: int
    candidates: tuple[Candidate, ...]


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Result of `tune`.

    **Arguments:**

    - `method`: the chosen method.
    - `ksd`: its discrepancy.
    - `candidates`: all candidates, sorted by the number of rounds (most first), then by
      discrepancy (smallest first).
    - `anchor`: the anchor that was used. Pass it to `sample` to save its cost.
    - `n_row_evals_tuning`: rows touched by the chains of the candidates and by their scoring.
    - `n_row_evals_preparation`: rows touched to prepare the anchor, the weights and so on.

    >>> import tallmc
    >>> X, y = [[1.0]], [1.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> anchor = tallmc.laplace(posterior)
    >>> Tuned(tallmc.sgld(0.1, size=1), 0.1, (), anchor, 4000, 10).method.step_size
    0.1
    """

    method: Method
    ksd: float
    candidates: tuple[Candidate, ...]
    anchor: Anchor
    n_row_evals_tuning: int
    n_row_evals_preparation: int


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
    """Choose the step size, and optionally the size, of a method by kernel Stein discrepancy.

    With a budget in rows, the same seed gives the same result.

    **Arguments:**

    - `posterior`: the posterior to sample.
    - `method`: the method to tune, or a list of methods to choose from.
    - `budget`: the cost limit.
    - `factors`: factors that multiply the step size of `method`. Defaults to 4⁻³ to 4².
    - `sizes`: subsample sizes to try. Defaults to the size of `method`.
    - `keep_one_in`: η, the reciprocal of the share of candidates that each round keeps.
    - `chains`: chains per candidate.
    - `seed`: seed of the chains.
    - `anchor`: an anchor of `posterior`; found by `laplace` if None.
    - `callback`: called with a `Round` after each round.

    **Returns:** a `Tuned`.

    **Raises:** `InvalidInput` if an argument is invalid or the budget is too small;
    `PreparationError` if every candidate fails.

    >>> import tallmc
    >>> X, y = [[1.0], [2.0]], [0.0, 1.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=10.0, noise_variance=1.0)
    >>> method, budget = tallmc.sgld_cv(step_size=0.01, size=1), Budget(rows=10_000)
    >>> tune(posterior, method, factors=[1.0, 10.0], budget=budget).method.step_size
    0.1
    """
    check_posterior(posterior)
    check_in_memory(
        posterior, "candidates run side by side", "The default method tunes itself; use sample()."
    )
    methods = _candidates(method, factors, sizes)
    if not isinstance(budget, Budget):
        raise InvalidInput(
            "budget",
            "be a Budget",
            budget,
            "For example Budget(rows=10_000_000) or Budget(seconds=60).",
        )
    keep_one_in = check_int("keep_one_in", keep_one_in, 2)
    chains, seed = check_int("chains", chains, 1), check_int("seed", seed, 0, 2**32 - 1)
    if callback is not None and not callable(callback):
        raise InvalidInput("callback", "be callable with a Round", callback)

    anchor, anchor_rows = _shared_anchor(posterior, methods, anchor)
    score, rounds = Score.around(posterior, anchor), _number_of_rounds(len(methods), keep_one_in)
    least = rounds * len(methods) * 2 * _LEAST_SCORED * score.rows_per_draw
    if budget.rows is not None and budget.rows < least:
        raise InvalidInput(
            "budget",
            f"be at least {least} rows for {len(methods)} candidates in {rounds} rounds",
            budget.rows,
        )
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
        remaining = [
            trial
            for trial in remaining[: math.ceil(len(remaining) / keep_one_in)]
            if math.isfinite(trial.ksd)
        ]
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
    method: Method | Sequence[Method], factors: Sequence[float] | None, sizes: Sequence[int] | None
) -> Sequence[Method]:
    if isinstance(method, Method):
        methods: Sequence[Method] = grid(method, FACTORS if factors is None else factors, sizes)
    elif isinstance(method, Sequence) and all(isinstance(item, Method) for item in method):
        methods = method
        if factors is not None or sizes is not None:
            raise InvalidInput(
                "factors and sizes", "be left out with a list of methods", (factors, sizes)
            )
    else:
        raise InvalidInput("method", "be a Method, or a list of them", method, "See tallmc.Method.")
    if len(methods) < 2:
        raise InvalidInput(
            "method, factors and sizes", "give at least two candidates", len(methods)
        )
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
        same = (k for k in range(number) if _differ_in_step_only(methods[k], method))
        earlier = next(same, None)
        if earlier is None:
            prepared = method.prepare(posterior, anchor, seed=seed)
            kernels.append(prepared.kernel)
            rows += prepared.n_row_evals - anchor.n_row_evals
        else:
            schedule = in_precision(as_schedule(method.step_size), posterior.dtype)
            kernels.append(
                eqx.tree_at(lambda bound: bound.kernel.schedule, kernels[earlier], schedule)
            )
    return kernels, rows


def _differ_in_step_only(one: Method, other: Method) -> bool:
    if isinstance(one.size, Adaptive) and one.size.noise_threshold is None:
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
