"""The plan of the default: how many hard rows, which step and metric, and what the check says."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..._anchor.anchor import Anchor
from ..._core.arrays import DenseMap, HostDraws, Vector, on_device
from ..._core.supervision import checkpoint, in_background, is_short_of_time, stage
from ..._engine.chains import chains_at_once
from ..._engine.kernel import BoundKernel
from ..._engine.run import Run, chain_keys
from ..._rows.access import RowAccess
from ...models.posterior import AbstractPosterior
from ..abstract import Account, ErrorBudget, PreparedMethod
from ..surrogate import (
    CLEAR,
    FEW_CHECKED,
    Check,
    Expansion,
    ModeSurrogates,
    RowSizes,
    SeriesSurrogate,
    Surrogate,
    check_on_all_rows,
    draws_at_once,
    make_surrogate,
    rehearse_check,
    rehearsed,
    tilted,
)
from ..trajectories import SurrogateHMC, SurrogateKernel
from .modes import Modes

_CHAINS = 32  # or more, if the device runs more chains at once
_ACCEPTANCE = 0.85
"""Of a trajectory. A trajectory is a quarter turn, in as many parts as this takes."""
_FIRST_LENGTH, _LONGEST = 2, 64
_ROUNDS, _ROUNDS_FOR_METRIC, _PER_ROUND, _KEPT_ROUNDS = 8, 4, 6, 3
_START = 0.7
"""Spread of the first positions in u."""
_BURN_IN = 5
ENOUGH_DRAWS = 3000.0
"""Effective draws, which cost little: errors of sds are then about 2 %."""
HARD_ROWS = (0, 512, 1024, 2048, 4096, 8192)
_MOST_LIKELIHOODS = 2**17
"""Of the hard rows in one gradient. Where a row has hundreds, delayed acceptance is cheaper."""
_CHEAP_PASS = 2**20
"""Likelihoods of a pass over all rows that a proposal may take, where a row has hundreds."""
_AUTODIFF_COST = 3
"""Gradients that the remainder of a hard row takes without closed forms."""
_SHARE_FELT, _TARGET = 0.01, 0.1
"""What typical draws feel of r_i, and the sd of the log weights that the hard rows aim at."""
_PREPARED_WITH = 64
"""Draws of the check that precedes a run."""
_SMALL, _MODERATE, _FAR, _HOPELESS = 0.05, 1.0, 2.0, 100.0
"""Sds of log weights up to which draws are kept and corrected, the largest log weight beyond the
draws, and the sd at draws of the Gaussian from which on no chain is run."""
_MOST_CENTRES = 5
_FARTHEST, _NARROWEST, _WIDEST = 1.5, 0.4, 2.5
"""How far means of u may be from 0, and the range of its sds."""


class _Chains(NamedTuple):
    """Chains that run well on a surrogate, and where they were."""

    method: SurrogateHMC
    kernel: SurrogateKernel
    positions: Float[np.ndarray, "chains d"]
    draws: HostDraws
    rate: float
    """Acceptance rate."""


@dataclasses.dataclass
class SurrogatePlanner:
    """Builds the plan, and counts the rows it touches."""

    posterior: AbstractPosterior
    anchor: Anchor
    budget: ErrorBudget
    exact: bool
    seed: int
    n_row_evals: int = 0
    why_not: str = ""
    n_unread: int = 0
    """Rows of an earlier fit, of which the surrogate has the series, beside those here."""

    def plan(self, modes: Modes | None = None) -> PreparedMethod | None:
        """Return the plan, or None if the series does not describe the posterior.

        With several `modes` each has a surrogate, and the chains visit all of them. Where the check
        finds too much left out, the next try has more hard rows. Where the chains went elsewhere,
        its centre and scale are those of the draws.
        """
        posterior = self.posterior
        expansions = [Expansion.at_anchor(posterior, self.anchor)]
        if modes is not None:
            factors = np.linalg.cholesky(modes.covariances)
            others = list(zip(modes.positions, factors, strict=True))[1:]
            expansions += [Expansion.at(posterior, *other) for other in others]
        sizes = [self._sizes(expansion) for expansion in expansions]
        if modes is not None and max(of.rounding for of in sizes) > _SMALL:
            self.why_not = "rounding errors hide how much probability each mode has"
            return None
        cost = posterior.model.row_cost
        # Of few groups each costs as much as many rows: delayed acceptance reads all of them less
        # often than chains would read those that are hard.
        most = posterior.n_rows if cost > 1 else math.inf
        hard_row_cost = 1 if posterior.model.cubic_cost == 1 else _AUTODIFF_COST
        n_choices = sum(count < most and count * cost <= _MOST_LIKELIHOODS for count in HARD_ROWS)
        for number in range(_MOST_CENTRES):
            if not all(expansion.is_finite for expansion in expansions):
                self.why_not = "derivatives of the rows are not finite where the chains went"
                return None
            place = min(max(map(enough_hard_rows, sizes)) + number, n_choices - 1)
            if HARD_ROWS[place] * hard_row_cost >= posterior.n_rows:
                self.why_not = "a series describes too few of the rows"
                return None
            if number == 0 and modes is None and posterior.rows.access >= RowAccess.TAKE:
                self._rehearse(sizes[0], HARD_ROWS[place])
            made = []
            for at, of_rows in zip(expansions, sizes, strict=True):
                one = make_surrogate(posterior, at, of_rows, HARD_ROWS[place], number)
                if number == 0 and self._is_hopeless(one):
                    return None
                made.append(tilted(one, posterior))
                self.n_row_evals += posterior.n_rows if one.tilt is not None else 0
            surrogate: Surrogate = made[0]
            if modes is not None:
                surrogate = ModeSurrogates.of(made, modes.weights)
            chains = self.tuned(surrogate, HARD_ROWS[place])
            u = surrogate.whitened(chains.draws)
            check = self.checked(surrogate, chains)
            self.n_row_evals += check.n_row_evals
            inside, small = is_in_range(u), self.is_small(check)
            if (inside and small) or is_short_of_time():
                break
            if inside and check.sd <= _MODERATE and n_choices == 1:
                break
            if not inside or check.sd > _MODERATE:
                moved = _recentred(expansions[0], u) if modes is None else None
                if moved is None:
                    break
                expansions = [Expansion.at(posterior, *moved)]
                sizes = [self._sizes(expansions[0])]
        # Jumps on all rows are not dearer than a pass per mode and proposal.
        if not inside or not (self.is_correctable(check) if modes is None else small):
            self.why_not = f"a series of the rows is off by {check.sd:.2g} in the log density"
            return None
        # Rare draws of few groups are farther off than a check at 64 draws sees.
        cheap = modes is None and cost > 1 and posterior.n_rows * cost <= _CHEAP_PASS
        return self.finished(chains, check, self.exact or not small or cheap, modes)

    def _rehearse(self, sizes: RowSizes, n_hard: int) -> None:
        """Compile the programs of chains and check, beside what comes before them."""
        posterior = self.posterior
        n_chains = max(_CHAINS, chains_at_once(posterior.dim))

        def chains() -> None:
            surrogate = rehearsed(posterior, sizes, n_hard)
            kernel = SurrogateHMC(hard_rows=n_hard, step_size=1.0).kernel(posterior, surrogate)
            start = on_device(np.zeros((n_chains, posterior.dim)), posterior.dtype)
            keys = chain_keys(self.seed, n_chains, purpose=1)
            Run(BoundKernel(kernel, posterior), keys, start, 1, 1, _PER_ROUND).compile()

        in_background(chains)
        in_background(lambda: rehearse_check(rehearsed(posterior, sizes, n_hard), posterior.rows))

    def _sizes(self, expansion: Expansion) -> RowSizes:
        checkpoint()
        stage("looking for hard rows")
        self.n_row_evals += expansion.n_row_evals + self.posterior.n_rows
        return RowSizes.of(self.posterior, expansion)

    def _is_hopeless(self, surrogate: SeriesSurrogate) -> bool:
        """Whether the series is far off at draws of the Gaussian, as on a curved ridge."""
        posterior = self.posterior
        if posterior.model.log_concave:
            return False
        # An sd that is too large by far shows in as few draws as one thread compares at once.
        count = draws_at_once(posterior.model)
        normals = np.random.default_rng(0).normal(size=(count, posterior.dim))
        moves = normals @ np.asarray(surrogate.metric.factor, np.float64).T
        draws = (np.asarray(surrogate.centre, np.float64) + moves)[None]
        check = check_on_all_rows(surrogate, posterior.rows, draws, count)
        self.n_row_evals += check.n_row_evals
        self.why_not = f"a series of the rows is off by {check.sd:.2g} in the log density"
        return check.sd > _HOPELESS

    def is_small(self, check: Check) -> bool:
        bias_is_small = check.bias.excess(self.budget, errors=2.0) <= 1
        return check.sd <= _SMALL and check.far <= _FAR and bias_is_small

    def is_correctable(self, check: Check) -> bool:
        """Whether delayed acceptance makes draws of the surrogate exact at a moderate cost."""
        return check.sd <= _MODERATE and check.far <= 2 * _FAR

    def checked(self, surrogate: Surrogate, chains: _Chains, few: bool = False) -> Check:
        """Compare the surrogate with all rows at some draws, and beyond them.

        With `few`, a few draws are enough if their log weights are next to nothing.
        """
        rows = self.posterior.rows
        if few:
            check = check_on_all_rows(surrogate, rows, chains.draws, FEW_CHECKED)
            if check.sd <= CLEAR:
                return check
            self.n_row_evals += check.n_row_evals
        # Twice what is small is seen at a few draws: all rows then accept the draws, or none do.
        count, large = _PREPARED_WITH, 2 * _SMALL
        return check_on_all_rows(surrogate, rows, chains.draws, count, count, large)

    def finished(
        self, chains: _Chains, check: Check, delayed: bool, modes: Modes | None = None
    ) -> PreparedMethod:
        method, old = dataclasses.replace(chains.method, delayed=delayed), chains.kernel
        surrogate = old.surrogate
        kernel = method.kernel(self.posterior, surrogate, old.metric, old.middle)
        order = 2 if surrogate.cubic is None else 3
        hard = 0 if surrogate.hard is None else np.count_nonzero(surrogate.hard.weights)
        turns = f"{method.length} part" + ("s" if method.length > 1 else "")
        reasons: tuple[str, ...] = () if modes is None else modes.describe()
        reasons += (
            f"{hard:,} hard rows of {self.posterior.n_rows + self.n_unread:,}, the "
            f"others by their series of order {order}: at {check.n_draws} draws the log density "
            f"is off by {check.sd:.2g}",
            f"Hamiltonian Monte Carlo with quarter turns in {turns}, of which {chains.rate:.0%} "
            "are accepted",
        )
        if delayed:
            reasons += ("every third trajectory is accepted on all rows: the draws are exact",)
        account = Account(method, self.budget, reasons, exact=delayed)
        start = on_device(chains.positions, self.posterior.dtype)
        rows = self.anchor.n_row_evals + self.n_row_evals
        bound = BoundKernel(kernel, self.posterior)
        ess = None if delayed else enough_draws(self.posterior)
        return PreparedMethod(
            bound, self.anchor, rows, account, start, _BURN_IN, 1, ess, len(chains.positions)
        )

    def tuned(self, surrogate: Surrogate, n_hard: int) -> _Chains:
        """Find the length of trajectories and the metric, with draws of the surrogate."""
        stage("tuning Hamiltonian Monte Carlo on the hard rows and the series")
        posterior, dim = self.posterior, self.posterior.dim
        n_chains = max(_CHAINS, chains_at_once(dim))
        normals = np.random.default_rng(self.seed).normal(size=(n_chains, dim))
        positions = np.asarray(surrogate.centre) + _START * np.asarray(
            normals @ np.asarray(surrogate.metric.factor, np.float64).T
        )
        length, metric, middle = _FIRST_LENGTH, None, None
        visited: list[np.ndarray] = []
        for number in range(_ROUNDS):
            checkpoint()
            method = SurrogateHMC(hard_rows=n_hard, step_size=math.pi / 2 / length, length=length)
            kernel = method.kernel(posterior, surrogate, metric, middle)
            keys = chain_keys(self.seed, n_chains, purpose=number + 1)
            start = on_device(positions, posterior.dtype)
            run = Run(BoundKernel(kernel, posterior), keys, start, 1, 1, _PER_ROUND)
            run.run_to(_PER_ROUND)
            rate = float(np.mean(run.sample_stats()["acceptance_rate"]))
            visited.append(run.positions())
            positions = _unstuck(np.concatenate(visited[-_KEPT_ROUNDS:], axis=1))
            length = _next_length(length, rate)
            if number + 1 == _ROUNDS_FOR_METRIC:
                u = surrogate.whitened(np.concatenate(visited[-_KEPT_ROUNDS:], axis=1))
                metric, middle = _gaussian(u, posterior.dtype)
        method = dataclasses.replace(method, step_size=math.pi / 2 / length, length=length)
        kept = np.concatenate(visited[-_KEPT_ROUNDS:], axis=1)
        return _Chains(method, kernel, positions, kept, rate)


def _unstuck(visited: HostDraws) -> Float[np.ndarray, "chains d"]:
    """The last positions; a chain that has not moved at all goes on from where another one is."""
    last = visited[:, -1].copy()
    stuck = np.ptp(visited, axis=1).max(axis=1) == 0
    if stuck.any() and not stuck.all():
        moving = np.flatnonzero(~stuck)
        last[stuck] = last[np.resize(moving, stuck.sum())]
    return last


def _next_length(length: int, rate: float) -> int:
    """Parts of a quarter turn. The share of rejected trajectories grows as the square of a part."""
    factor = math.sqrt(max(1 - rate, 1e-3) / (1 - _ACCEPTANCE))
    return max(1, min(_LONGEST, round(length * min(max(factor, 0.5), 3.0))))


def enough_draws(posterior: AbstractPosterior) -> float | None:
    """The goal of the default in effective draws; None for the usual one, where draws cost much."""
    return None if posterior.draws_are_dear else ENOUGH_DRAWS


def enough_hard_rows(sizes: RowSizes) -> int:
    """The place in `HARD_ROWS` of a number of rows that is likely to be enough."""
    n_kept, most = len(sizes.remainder), HARD_ROWS[-1] // 2
    total = np.sum(sizes.remainder, dtype=np.float64)
    hardest = sizes.remainder
    if n_kept > most:
        hardest = np.partition(hardest, n_kept - most)[n_kept - most :]
    known = np.append(0.0, np.cumsum(np.sort(hardest)[::-1], dtype=np.float64))
    for place, count in enumerate(HARD_ROWS):
        # The half that is hardest is about certain, the other half is drawn from the rest.
        rest = total - known[min(count // 2, len(known) - 1)]
        error = rest / math.sqrt(count / 2) if count else 10 * rest
        if _SHARE_FELT * error <= _TARGET:
            return place
    return len(HARD_ROWS) - 1


def is_in_range(u: HostDraws) -> bool:
    """Whether the draws are where the series was made for."""
    means, sds = np.abs(u.mean(axis=(0, 1))), u.std(axis=(0, 1))
    return bool(
        np.isfinite(u).all()
        and means.max() < _FARTHEST
        and sds.min() > _NARROWEST
        and sds.max() < _WIDEST
    )


def _recentred(expansion: Expansion, u: HostDraws) -> tuple[np.ndarray, np.ndarray] | None:
    """θ̂ and C from draws; None if these are spread in too few directions."""
    flat = u.reshape(-1, u.shape[2])
    try:
        spread = np.linalg.cholesky(np.cov(flat.T).reshape(2 * flat.shape[1:]))
    except np.linalg.LinAlgError:
        return None
    centre = expansion.centre + expansion.factor @ flat.mean(axis=0)
    return centre, expansion.factor @ spread


def _gaussian(u: HostDraws, dtype: Any) -> tuple[DenseMap, Vector]:
    """S and μ of draws; their covariance is shrunk towards I, since a few draws say little."""
    flat = u.reshape(-1, u.shape[2])
    dim, weight = flat.shape[1], len(flat) / 4
    covariance = np.cov(flat.T).reshape(dim, dim)
    shrunk = (weight * covariance + dim * np.eye(dim)) / (weight + dim)
    return DenseMap(on_device(np.linalg.cholesky(shrunk), dtype)), on_device(
        flat.mean(axis=0), dtype
    )
