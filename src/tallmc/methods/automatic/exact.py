"""The exact plan: Hamiltonian Monte Carlo on all rows, tuned by short runs.

With few rows, or with gradient noise that requires a large share of them, subsampling gains little
and exactness has hardly any extra cost. A posterior far from a Gaussian, or with several modes, is
sampled exactly because no anchor describes it.

The tuning runs 8 chains. Each round of steps corrects the step size towards an acceptance rate of
0.8. Trajectories last a quarter of the period of a standard Gaussian on average. In the metric's
coordinates u the draws should have the covariance I. Their covariance S replaces it with the weight
that Ledoit and Wolf (2004) derive, the share of ‖S − I‖² that chance does not explain. Draws that
fit the metric end the first rounds early. Then a longer run measures the correlation between the
ends of trajectories. While it is large in a parameter, as it is along curved ridges, trajectories
are made twice as long, as long as this pays. Coordinates of group effects are made again where the
draws are.

HMC with one leapfrog step per draw is MALA, so the choice of the length includes MALA. NUTS is not
tried. It cannot run chains in step (`dynamics/hmc.py`), and on simulated logistic regressions with
5,000 rows it took longer. With d = 10, 100 and 500 this plan took 0.72, 0.73 and 0.70 of the time
of NumPyro's NUTS, everything included, for 1,047, 1,291 and 1,281 effective draws against 1,215,
1,406 and 803 (`python -m benchmarks small_data`, one run on two shared x86 cores).
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._anchor.anchor import Anchor
from ..._core.arrays import AbstractLinearMap, DenseMap, DiagonalMap
from ..._core.errors import Outcome, SamplingWarning, warn
from ..._core.random import new_key, standard_normal
from ..._core.supervision import is_short_of_time, stage
from ..._engine.kernel import BoundKernel
from ..._engine.run import Run, chain_keys
from ...dynamics import HMC, ModeJumpingHMC
from ...dynamics.dynamics import AbstractDynamics
from ...dynamics.hmc import mean_leap_share
from ...geometry import Dense, Diagonal, EffectMap, GeometryChoice, StandardEffects
from ...gradient import Full
from ...models.posterior import AbstractPosterior, check_in_memory
from ...subsample import AllRows
from ..abstract import Account, ErrorBudget, PreparedMethod
from ..method import Method
from .effects import PASSES, geometry_at
from .modes import Modes, in_one_mode, with_light_modes

_CHAINS = 8
_TARGET_ACCEPTANCE = 0.8
_FIRST_TIME = math.pi / 2  # of a mean trajectory in units of the metric: a quarter of the period
_LONGEST_TIME = 10 * _FIRST_TIME
_JITTER_OF_EFFECTS = 0.25  # of trajectories in coordinates that fit
_LONGEST = 512  # leapfrog steps of a trajectory, on average
_FIRST_STEP = 2.2  # leapfrog step in one dimension; smaller by the fourth root of d in d dimensions
_ROTATION = 3.0  # steps that are rotations in coordinates of effects are longer
_FEWEST_ROUNDS, _FIRST_ROUNDS, _ROUNDS_PER_METRIC = 4, 10, 4
_NEAR_TARGET = 0.1  # acceptance rates that differ less from their target need no more rounds
_NEW_METRIC = 0.1  # least weight of the draws' covariance for which the metric is changed
_DRAWS_PER_EFFECTIVE = 4  # of tuning, a guess
_SURE = 4.0  # sds of a mean by chance
_TRAJECTORIES_PER_ROUND, _TRAJECTORIES_TO_MEASURE = 5, 25
# Correlation between successive draws. A short run cannot tell how slowly badly mixed draws mix.
_WELL_MIXED, _BADLY_MIXED = 0.5, 0.8
_WORTHWHILE = 1.2  # least gain in effective draws per step from longer trajectories
_LEAST_JUMP_SHARE = 0.05  # of the jumps, to each mode
_LEAST_MODE_CHANGES = 0.05  # relative to those of independent draws
_BURN_IN_TRAJECTORIES = 10
_SECONDS_TO_ANNOUNCE = 60.0
_GOAL = 1000.0  # effective draws that the announced cost is for
_CURE = "Leave `exact` out, or fit a part of the rows in memory."


def exact_plan(
    posterior: AbstractPosterior,
    anchor: Anchor,
    geometry: GeometryChoice,
    budget: ErrorBudget,
    why: tuple[str, ...],
    seed: int,
    modes: Modes | None = None,
    n_row_evals: int = 0,
) -> PreparedMethod:
    """Return tuned HMC that starts in the metric of `geometry`, and jumps between `modes`.

    `n_row_evals` counts rows evaluated before, apart from those of the anchor. If jumps are hardly
    ever accepted, the chains stay in the anchor's mode, and a doubt says so.
    """
    check_in_memory(posterior, why[-1] if why else "every step uses all of them", _CURE)
    if modes is not None:
        jumping = _Tuner(posterior, anchor, geometry, seed, modes, n_row_evals)
        plan = jumping.plan(budget, (*why, *modes.describe()))
        if jumping.mode_changes > _LEAST_MODE_CHANGES * modes.changes_per_draw:
            return with_light_modes(plan, modes)
        n_row_evals = jumping.n_row_evals
    plan = _Tuner(posterior, anchor, geometry, seed, None, n_row_evals).plan(budget, why)
    return plan if modes is None else in_one_mode(plan, modes)


@dataclasses.dataclass
class _Tuner:
    posterior: AbstractPosterior
    anchor: Anchor
    geometry: GeometryChoice
    seed: int
    modes: Modes | None
    n_row_evals: int

    def __post_init__(self) -> None:
        self.time = _FIRST_TIME
        self.leap = _FIRST_STEP / self.posterior.dim**0.25
        if isinstance(self.geometry, StandardEffects):
            self.leap = min(_ROTATION * self.leap, _FIRST_TIME)
        prepared = self._method().prepare(self.posterior, self.anchor)
        self.bound = prepared.kernel
        self.n_row_evals += prepared.n_row_evals
        d = self.posterior.dim
        self.positions: Float[Array, "chains d"] = (
            jnp.broadcast_to(self.anchor.position, (_CHAINS, d))
            if self.modes is None
            else jnp.asarray(self.modes.start(_CHAINS), self.posterior.dtype)
        )
        if isinstance(self._map, EffectMap):  # with thousands of effects draws are far from a mode
            noise = standard_normal(new_key(self.seed), self.positions.shape, self.positions.dtype)
            # Coefficients start at the mode: that of a category without events has a steep wall.
            self.positions = _placed(self._map, noise.at[:, self._map.core].set(0))
        self.rounds = 0
        self.rate = 0.0
        """Acceptance rate of the last round."""
        self.mode_changes = 0.0
        """How often a draw is in another mode than the draw before."""

    def plan(self, budget: ErrorBudget, why: tuple[str, ...]) -> PreparedMethod:
        stage("tuning Hamiltonian Monte Carlo on all rows")
        visited = [self._round()]
        while len(visited) < _FIRST_ROUNDS and not is_short_of_time():
            if len(visited) >= _FEWEST_ROUNDS and self._is_tuned(visited):
                break
            visited.append(self._round())
        best = self._measure(np.concatenate(visited[len(visited) // 2 :], axis=1))
        while best.correlation > _WELL_MIXED and self._can_be_longer and not is_short_of_time():
            self.time *= 2
            longer = self._measure(best.draws)
            gain = longer.efficiency / best.efficiency
            if best.correlation < _BADLY_MIXED and gain < _WORTHWHILE:
                break
            best = longer
        self.bound, self.leap, self.geometry, self.time = best.settings
        if self.modes is not None:
            nearest = self.modes.nearest(best.draws)
            self.mode_changes = float(np.mean(nearest[:, 1:] != nearest[:, :-1]))
        account = Account(
            method=self._method(), budget=budget, reasons=(*why, *self._explain(best)), exact=True
        )
        burn_in = _BURN_IN_TRAJECTORIES * best.length
        return PreparedMethod(
            self.bound, self.anchor, self.n_row_evals, account, self.positions, burn_in, best.length
        )

    @property
    def _can_be_longer(self) -> bool:
        return 2 * self.time <= _LONGEST_TIME and 2 * self._length <= _LONGEST

    @property
    def _length(self) -> int:
        mean_leap = self.leap * mean_leap_share(self._jitter)
        return max(1, min(_LONGEST, round(self.time / mean_leap)))

    @property
    def _jitter(self) -> float:
        return _JITTER_OF_EFFECTS if isinstance(self.geometry, StandardEffects) else 1.0

    def _method(self) -> Method:
        dynamics: AbstractDynamics = HMC(self._length, jitter=self._jitter)
        if self.modes is not None:
            dynamics = ModeJumpingHMC(
                self._length,
                self.modes.positions,
                self.modes.covariances,
                np.maximum(self.modes.weights, _LEAST_JUMP_SHARE),
            )
        return Method(
            dynamics=dynamics,
            gradient=Full(),
            subsample=AllRows(),
            geometry=self.geometry,
            step_size=self.leap**2,
        )

    def _round(self, gain: float = 1.0) -> Float[np.ndarray, "chains draws d"]:
        """Run some trajectories, correct the step size, return one draw per trajectory."""
        run = self._run(2, _TRAJECTORIES_PER_ROUND)
        rate = float(np.mean(run.sample_stats()["acceptance_rate"]))
        if all(outcome is Outcome.OK for outcome in run.outcomes()):
            self.positions = run.last_positions()
        self.rate = rate
        self.leap *= math.exp((rate - _TARGET_ACCEPTANCE) * gain)
        if isinstance(self.geometry, StandardEffects):
            self.leap = min(self.leap, _FIRST_TIME)
        return run.positions()

    def _run(self, burn_in: int, trajectories: int) -> Run:
        """Run chains with the present settings; both arguments count mean trajectories."""
        length, dtype = self._length, self.posterior.dtype
        self.bound = eqx.tree_at(
            lambda bound: (bound.kernel.schedule.step_size, bound.kernel.dynamics.length),
            self.bound,
            (jnp.asarray(self.leap**2, dtype), jnp.asarray(length, dtype)),
        )
        keys = chain_keys(self.seed, _CHAINS, purpose=self.rounds + 1)
        run = Run(self.bound, keys, self.positions, burn_in * length, length, trajectories)
        run.compile()
        run.run_to(trajectories)
        self.rounds += 1
        self.n_row_evals += run.rows_touched()
        return run

    def _is_tuned(self, visited: list[Float[np.ndarray, "chains draws d"]]) -> bool:
        """Whether the last draws fit the metric, with an acceptance rate near its target."""
        if abs(self.rate - _TARGET_ACCEPTANCE) > _NEAR_TARGET:
            return False
        if isinstance(self._map, EffectMap):  # the map fits, and few draws say little of 1,000s
            return True
        draws = np.concatenate(visited[len(visited) // 2 :], axis=1)
        return self._shrunk(draws).weight < _NEW_METRIC

    def _set_metric(self, draws: Float[np.ndarray, "chains draws d"]) -> bool:
        """Use the covariance of `draws`, shrunk towards the metric, as the metric.

        **Returns** False if the draws fit the metric, which then stays.
        """
        map_in_use = self._map
        if isinstance(map_in_use, EffectMap):
            refitted = geometry_at(self.posterior, _refitted(map_in_use, draws).centre)
            self.n_row_evals += PASSES * self.posterior.n_rows
            scale = _refitted(refitted.prepare(self.posterior, None), draws).scale
            self._use(dataclasses.replace(refitted, scale=scale))
            return True
        found = self._shrunk(draws)
        if found.weight < _NEW_METRIC:
            return False
        if isinstance(map_in_use, DiagonalMap):
            scale = np.asarray(map_in_use.scale, np.float64)
            self._use(Diagonal(scale * np.sqrt(found.covariance)))
        else:
            assert isinstance(map_in_use, DenseMap)
            factor = np.asarray(map_in_use.factor, np.float64)
            covariance = factor @ found.covariance @ factor.T
            self._use(Dense((covariance + covariance.T) / 2))
        return True

    def _use(self, geometry: GeometryChoice) -> None:
        self.geometry, prepared = geometry, geometry.prepare(self.posterior, self.anchor)
        self.bound = eqx.tree_at(lambda bound: bound.kernel.dynamics.geometry, self.bound, prepared)

    @property
    def _map(self) -> AbstractLinearMap:
        dynamics = self.bound.composition.dynamics
        assert isinstance(dynamics, HMC)
        return dynamics.geometry

    def _shrunk(self, draws: Float[np.ndarray, "chains draws d"]) -> _Shrinkage:
        """The covariance of draws in the coordinates of the metric, shrunk towards I."""
        centred = self._centred(draws).reshape(-1, draws.shape[2])
        if isinstance(self._map, DiagonalMap):
            return _shrinkage(centred / np.asarray(self._map.scale, np.float64), diagonal=True)
        assert isinstance(self._map, DenseMap)
        factor = np.asarray(self._map.factor, np.float64)
        return _shrinkage(np.linalg.solve(factor, centred.T).T, diagonal=False)

    def _centred(
        self, draws: Float[np.ndarray, "chains draws d"]
    ) -> Float[np.ndarray, "chains draws d"]:
        """Draws relative to their mean, or to the nearest mode: jumps are no matter of tuning."""
        flat = draws.reshape(-1, draws.shape[2]).astype(np.float64)
        if self.modes is not None:
            flat = self.modes.centred(flat)
        return (flat - flat.mean(axis=0)).reshape(draws.shape)

    def _measure(self, draws: Float[np.ndarray, "chains draws d"]) -> _Measured:
        """Set the metric from earlier draws and the step size for it, then measure the sampler."""
        is_new = self._set_metric(draws)
        for number in range(1 if is_short_of_time() else _ROUNDS_PER_METRIC):
            if not is_new and abs(self.rate - _TARGET_ACCEPTANCE) < _NEAR_TARGET:
                break
            self._round(gain=1 / (1 + number / 2))
        run = self._run(0, _TRAJECTORIES_TO_MEASURE)
        self.positions = run.last_positions()
        return _Measured(
            run.positions(),
            _correlation(self._centred(run.positions())),
            _correlation(run.positions() - run.positions().mean(axis=(0, 1))),
            self._length,
            float(np.mean(run.sample_stats()["acceptance_rate"])),
            run.seconds / run.step,
            (self.bound, self.leap, self.geometry, self.time),
        )

    def _explain(self, best: _Measured) -> tuple[str, str]:
        """Describe the sampler and its cost; announce a cost of minutes before the run."""
        jumps = "" if self.modes is None else ", with jumps between the modes"
        steps = _GOAL / _CHAINS / best.effective_draws_per_step(best.correlation_of_all)
        rows = steps * _CHAINS * self.posterior.n_rows
        number = f"{best.length} leapfrog step" + ("s" if best.length > 1 else "")
        cost = (
            f"{_GOAL:,.0f} effective draws take about {steps:,.0f} steps per chain on all rows, "
            f"{rows:.2g} rows together"
        )
        if (seconds := steps * best.seconds) > _SECONDS_TO_ANNOUNCE:
            cure = "max_seconds ends the run earlier."
            message = f"{cost}, and about {seconds / 60:.0f} minutes here. {cure}"
            warn(message, SamplingWarning)
        return (
            f"Hamiltonian Monte Carlo with {number} per draw on average{jumps}: "
            f"{best.rate:.0%} of its trajectories are accepted",
            cost,
        )


@eqx.filter_jit
def _placed(effects: EffectMap, coordinates: Float[Array, "k d"]) -> Float[Array, "k d"]:
    return jax.vmap(effects.placed)(coordinates)


class _Refit(NamedTuple):
    centre: Float[Array, " d"]
    scale: Float[np.ndarray, " d"]


def _refitted(effects: EffectMap, draws: Float[np.ndarray, "chains draws d"]) -> _Refit:
    """The mean of draws and their sds in these coordinates, where they cannot be 0 and 1 by chance.

    An sd of effects is larger on average than at the mode, and the log sd of small effects has a
    long tail. A shrinkage of all coordinates alike would see neither among thousands of effects.
    """
    whitened = np.asarray(_whitened(effects, jnp.asarray(draws).reshape(-1, draws.shape[2])))
    mean, variance = whitened.mean(axis=0), whitened.var(axis=0)
    by_chance = _SURE * math.sqrt(_DRAWS_PER_EFFECTIVE / len(whitened))
    shift = np.where(np.abs(mean) > by_chance, mean, 0)
    is_other = np.abs(np.log(variance)) > math.sqrt(2) * by_chance
    scale = np.where(is_other, np.sqrt(variance), 1)
    return _Refit(_placed(effects, jnp.asarray(shift, draws.dtype)[None])[0], scale)


@eqx.filter_jit
def _whitened(effects: EffectMap, positions: Float[Array, "k d"]) -> Float[Array, "k d"]:
    return jax.vmap(effects.coordinates)(positions)


@dataclasses.dataclass
class _Measured:
    """A run with fixed settings."""

    draws: Float[np.ndarray, "chains draws d"]
    correlation: float
    """Between successive draws, in the worst parameter and within a mode."""
    correlation_of_all: float
    """The same over all modes."""
    length: int
    rate: float
    """Acceptance rate."""
    seconds: float
    """Seconds per step of all chains."""
    settings: tuple[BoundKernel, float, GeometryChoice, float]

    def effective_draws_per_step(self, correlation: float) -> float:
        """Effective draws per step of one chain whose successive draws are so correlated."""
        positive = min(max(correlation, 0.0), 0.99)
        return (1 - positive) / (1 + positive) / self.length

    @property
    def efficiency(self) -> float:
        """Effective draws per step of one chain, within a mode."""
        return self.effective_draws_per_step(self.correlation)


class _Shrinkage(NamedTuple):
    """The covariance (1 − w) I + w S of whitened draws, or its diagonal."""

    weight: float
    covariance: Float[np.ndarray, "d d"] | Float[np.ndarray, " d"]


def _shrinkage(whitened: Float[np.ndarray, "n d"], diagonal: bool) -> _Shrinkage:
    """Shrink S towards I by Ledoit and Wolf's weight, as if every fourth draw were independent."""
    n, d = whitened.shape
    squares = whitened**2
    found = squares.mean(axis=0) if diagonal else whitened.T @ whitened / n
    fourth = np.sum(squares**2) if diagonal else np.sum(squares.sum(axis=1) ** 2)
    target = np.ones(d) if diagonal else np.eye(d)
    distance = np.sum((found - target) ** 2)
    by_chance = _DRAWS_PER_EFFECTIVE / n * (fourth / n - np.sum(found**2))
    weight = max(0.0, 1 - by_chance / distance) if distance > 0 else 0.0
    return _Shrinkage(weight, (1 - weight) * target + weight * found)


def _correlation(draws: Float[np.ndarray, "chains draws d"]) -> float:
    """The largest correlation between successive draws of a parameter; their mean is zero.

    The largest of d estimates is too large by about √(2 log d/n), which is subtracted.
    """
    products = (draws[:, 1:] * draws[:, :-1]).mean(axis=(0, 1))
    squares = (draws**2).mean(axis=(0, 1))
    largest = np.max(products / np.where(squares > 0, squares, np.inf))
    chains, n_draws, dim = draws.shape
    return float(largest - math.sqrt(2 * math.log(dim) / (chains * (n_draws - 1))))
