"""Hamiltonian Monte Carlo on the surrogate, and delayed acceptance on all rows.

With u = μ + Sv from a mean and a metric of draws, Ŝ is close to ‖v‖²/2, and a trajectory would be a
rotation of v and its momentum ρ. A step of the chain is L such turns by an angle δ between kicks by
what is not Gaussian (Shahbaba et al., 2014), with ρ ~ N(0, I) and δ uniform on ε[0.8, 1.2]:

    ρ ← ρ − (δ/2)(∇Ŝ − v);   (v, ρ) turns by δ;   ρ ← ρ − (δ/2)(∇Ŝ − v)

accepted with probability min(1, exp(Ŝ + ‖ρ‖²/2 − Ŝ' − ‖ρ'‖²/2)). It reads the hard rows only, and
all chains run in step. *Delayed acceptance* makes such chains exact: several trajectories are a
proposal that is reversible for exp(−Ŝ), so accepting where they end with probability
min(1, w(u')/w(u)) leaves the posterior invariant. One pass over all rows between two steps serves
the proposals of all chains, so the rows may be in a row store.

Effects u whose common scale is integrated out (`ScaleMixturePrior`) may have any size where the
rows do not show them. Before each trajectory, one such vector is multiplied by e^δ, δ uniform on
[−1.5, 1.5], accepted with probability min(1, exp(Ŝ − Ŝ' + Kδ)) for K effects. With delayed
acceptance there is one more such move at the end, so that the proposal stays reversible.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._anchor.anchor import Anchor
from .._core.arrays import DenseMap, Scalar, Vector, on_device
from .._core.errors import Outcome, check_int, check_number
from .._core.random import normals_of, pairs_for_normals, random_words, uniform_of
from .._engine.kernel import AbstractKernel, ChainState, Drawn, Gathered, KernelStep, NewChain
from .._engine.run import Run
from .._rows.access import AbstractRows
from ..dynamics.dynamics import AbstractDynamicsState, acceptance_rate
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior
from ..schedule import AbstractSchedule, Constant, in_precision
from .abstract import AbstractAnchoredMethod, Account, AtAnchor, labels
from .surrogate import (
    Check,
    Expansion,
    RowSizes,
    SeriesSurrogate,
    Surrogate,
    check_on_all_rows,
    log_weights_at,
    make_surrogate,
)

_SMALLEST_TURN, _LARGEST_TURN = 0.8, 1.2
_PER_PROPOSAL = 3  # Trajectories per pass over all rows, with delayed acceptance
_LONGEST_STRETCH = 1.5
_WORDS_OF_STRETCHES = 4
_CHAINS_AT_ONCE = 16
"""Chains whose proposals one thread compares with all rows, or an eighth of all chains."""


class Point(eqx.Module):
    """A point between two trajectories."""

    whitened: Vector  # v
    potential: Scalar  # Ŝ
    gradient: Vector  # ∇Ŝ with respect to v
    log_weight: Scalar  # log w(u) with delayed acceptance, otherwise 0


class TrajectoryState(AbstractDynamicsState):
    """Where a chain is and, with delayed acceptance, where it may go in the next step."""

    position: Vector  # θ
    here: Point
    proposed: Point | None


class SurrogateKernel(AbstractKernel):
    """Trajectories on the surrogate; with delayed acceptance, several of them and a pass."""

    surrogate: Surrogate
    schedule: AbstractSchedule  # ε, the mean angle of a turn
    length: Int[Array, ""]  # L
    metric: DenseMap  # S
    middle: Vector  # μ
    rest: Vector
    delayed: bool = eqx.field(static=True)

    fewest_per_group, longest_block = 16, 64
    reads_rows = False

    @property
    def model(self) -> AbstractModel:
        return self.surrogate.model

    @property
    def rows_per_step(self) -> int:
        return self.surrogate.n_hard * int(self.length) * self._trajectories

    @property
    def _trajectories(self) -> int:
        return _PER_PROPOSAL if self.delayed else 1

    def rows_at_start(self) -> int:
        return self.surrogate.n_hard

    @property
    def renewed_every(self) -> int | None:
        return 1 if self.delayed else None

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.maximum(step, 1) if self.delayed else np.zeros_like(step)

    def start_memory(self, positions: Float[Array, "chains d"], rows: AbstractRows) -> Any:
        """v of the chains, from the host, which has float64, and log w."""
        metric = np.asarray(self.metric.factor, np.float64)
        u = self.surrogate.whitened(np.asarray(positions))
        v = np.linalg.solve(metric, (u - np.asarray(self.middle, np.float64)).T).T
        return on_device(v, positions.dtype), self._log_weights(v, rows)

    def _log_weights(
        self, v: Float[np.ndarray, "chains d"], rows: AbstractRows
    ) -> Float[Array, " chains"]:
        """log w of all chains, in one pass over the rows; 0 without delayed acceptance."""
        dtype = self.rest.dtype
        if not self.delayed:
            return on_device(np.zeros(len(v)), dtype)
        u = np.asarray(self.middle) + np.asarray(v) @ np.asarray(self.metric.factor).T
        assert isinstance(self.surrogate, SeriesSurrogate), "no delayed acceptance with modes"
        at_once = max(_CHAINS_AT_ONCE, len(u) // 8)
        return on_device(log_weights_at(self.surrogate, rows, u, at_once), dtype)

    def init(self, new: NewChain, rows: AbstractRows) -> ChainState:
        v, log_weight = new.carried
        here = Point(v, jnp.full_like(log_weight, _unknown(v)), jnp.zeros_like(v), log_weight)
        proposed = here if self.delayed else None
        return ChainState(TrajectoryState(new.position, here, proposed), None)

    def renew(self, chains: ChainState, rows: AbstractRows) -> ChainState:
        proposed = chains.motion.proposed
        log_weights = self._log_weights(np.asarray(proposed.whitened), rows)
        return eqx.tree_at(lambda state: state.motion.proposed.log_weight, chains, log_weights)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        # From one array of random words: a second one would double the time of the compilation.
        dim, dtype = self.rest.shape[0], self.rest.dtype
        pairs = pairs_for_normals(dim, dtype)
        further = _WORDS_OF_STRETCHES if self._blocks else 0
        words = random_words(key, (steps, self._trajectories, pairs + 2 + further))
        uniforms = uniform_of(words[:, :, pairs:], dtype)
        turns = _SMALLEST_TURN + (_LARGEST_TURN - _SMALLEST_TURN) * uniforms[:, :, 0, 1]
        log_uniforms = jnp.log(uniforms[:, :, :2, 0])
        noise = (
            normals_of(words[:, :, :pairs], dim, dtype),
            jnp.append(log_uniforms[:, :, 0], log_uniforms[:, :1, 1], axis=1),
            turns,
            uniforms[:, -1, 1, 1],
            uniforms[:, :, 2:].reshape(steps, self._trajectories, 2, further),
        )
        return Drawn((), noise)

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        momenta, log_uniforms, turns, mode, stretches = gathered.noise
        sizes = self.schedule(step).astype(momenta.dtype) * turns
        motion, stats = state.motion, {}
        here: Point = motion.here
        if self.delayed:
            log_ratio = motion.proposed.log_weight - here.log_weight
            here = _chosen(log_uniforms[-1] < log_ratio, motion.proposed, here)
            stats["delayed_acceptance_rate"] = acceptance_rate(log_ratio)
        drawn = (momenta, sizes, log_uniforms[:-1]), stretches[:, 0]

        def advance(at: Point, each: Any) -> tuple[Point, Scalar]:
            return self._trajectory(self._stretched(at, each[1]), *each[0])

        end, rates = lax.scan(advance, here, drawn)
        if self.delayed:
            end = self._stretched(end, stretches[0, 1])
        stats["acceptance_rate"] = jnp.mean(rates)
        here, proposed = (here, end) if self.delayed else (end, None)
        position = self.surrogate.placed(self._u(here.whitened), mode)
        known = end.potential < _unknown(self.rest)
        outcome = jnp.where(known, Outcome.OK, Outcome.NON_FINITE).astype(jnp.int32)
        moved = TrajectoryState(position, here, proposed)
        return KernelStep(ChainState(moved, None), stats, outcome)

    @property
    def _blocks(self) -> list[np.ndarray]:
        """The places of effects that share a scale which is integrated out."""
        return [places for places, _ in self.model.scale_mixtures()]

    def _stretched(self, start: Point, uniforms: Float[Array, " s"]) -> Point:
        """The point after an attempt to multiply effects that share a scale by a number."""
        if not (blocks := self._blocks):
            return start
        chosen = np.zeros((len(blocks), len(self.rest)), self.rest.dtype)
        for k, places in enumerate(blocks):
            chosen[k, places] = 1
        number = jnp.minimum((uniforms[0] * len(blocks)).astype(int), len(blocks) - 1)
        block = jnp.asarray(chosen)[number]
        log_factor = _LONGEST_STRETCH * (2 * uniforms[1] - 1)
        assert isinstance(self.surrogate, SeriesSurrogate), "models with scales are of one mode"
        effects = block * self.surrogate.position(self._u(start.whitened))
        move = self.surrogate.metric.solve(jnp.expm1(log_factor) * effects)
        v = start.whitened + self.metric.solve(move)
        end = Point(v, *self._evaluated(v), start.log_weight)
        log_ratio = start.potential - end.potential + jnp.sum(block) * log_factor
        known = start.potential < _unknown(v)  # or any stretch would be accepted
        return _chosen(known & (jnp.log(uniforms[2]) < log_ratio), end, start)

    def _trajectory(
        self, start: Point, momentum: Vector, turn: Scalar, log_uniform: Scalar
    ) -> tuple[Point, Scalar]:
        turn = jnp.where(start.potential < _unknown(momentum), turn, 0)
        cosine, sine = jnp.cos(turn), jnp.sin(turn)

        has_hard = self.surrogate.hard is not None

        def turned(carry: tuple[Vector, Vector, Scalar, Vector]) -> Any:
            v, momentum, _, gradient = carry
            momentum = momentum - turn / 2 * (gradient - v)
            v, momentum = cosine * v + sine * momentum, cosine * momentum - sine * v
            value, gradient = self._evaluated(v)
            return v, momentum - turn / 2 * (gradient - v), value, gradient

        def advance(_: Any, carry: Any) -> Any:
            v, momentum, value, gradient = turned(carry)
            return v, momentum, start.potential if has_hard else value, gradient

        # Ŝ of hard rows takes time, so only the last turn computes it. Without hard rows it is
        # cheap, and one evaluation compiles in less time than two.
        first = start.whitened, momentum, start.potential, start.gradient
        moved = lax.fori_loop(0, self.length - has_hard, advance, first)
        v, last, value, gradient = turned(moved) if has_hard else moved
        end = Point(v, value, gradient, start.log_weight)
        kinetic = jnp.sum(last**2) / 2 - jnp.sum(momentum**2) / 2
        log_ratio = start.potential - end.potential - kinetic
        return _chosen(log_uniform < log_ratio, end, start), acceptance_rate(log_ratio)

    def _u(self, v: Vector) -> Vector:
        return self.middle + self.metric.push(v)

    def _evaluated(self, v: Vector) -> tuple[Scalar, Vector]:
        """Ŝ(μ + Sv) and its gradient with respect to v."""
        value, gradient = self.surrogate.potential_and_gradient(self._u(v))
        return value, self.metric.pull(gradient)


def _unknown(like: Array) -> np.floating[Any]:
    """Ŝ of a chain's first point, for which there is no program.

    The first trajectory has no length, and ends there with Ŝ.
    """
    return jnp.finfo(like.dtype).max


def _chosen(first: Array, one: Point, other: Point) -> Point:
    return jax.tree.map(lambda of_one, of_other: jnp.where(first, of_one, of_other), one, other)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurrogateHMC(AbstractAnchoredMethod):
    """Hamiltonian Monte Carlo on hard rows and a series of the others, checked on all rows.

    **Arguments:**

    - `hard_rows`: about how many rows count as they are.
    - `step_size`: the mean angle of a turn, in radians.
    - `length`: turns of a trajectory.
    - `delayed`: whether all rows decide about every third trajectory, which makes draws exact.
    """

    paper = "Shahbaba, Lan, Johnson and Neal (2014)"
    bias = (
        "What the series leaves out, measured on all rows at the draws; none with delayed "
        "acceptance."
    )
    cost = (
        "An anchor and two passes. A step reads the hard rows `length` times; with delayed "
        "acceptance three times as often, and all rows once."
    )

    hard_rows: int
    step_size: float
    length: int = 5
    delayed: bool = False

    def __post_init__(self) -> None:
        check_int("hard_rows", self.hard_rows, 0)
        check_number("step_size", self.step_size, 0, low_open=True)
        check_int("length", self.length, 1)

    @property
    def has_accept_step(self) -> bool:
        return self.delayed

    @property
    def exact(self) -> bool:
        return self.delayed

    @property
    def axes(self) -> dict[str, str]:
        dynamics = "HMC" + (" with delayed acceptance" if self.delayed else "")
        return labels(dynamics, "hard rows and a series", "hard rows", "fixed")

    def kernel_at(self, posterior: AbstractPosterior, anchor: Anchor) -> AtAnchor:
        expansion = Expansion.at_anchor(posterior, anchor)
        sizes = RowSizes.of(posterior, expansion)
        surrogate = make_surrogate(posterior, expansion, sizes, self.hard_rows)
        rows = expansion.n_row_evals + posterior.n_rows
        return AtAnchor(self.kernel(posterior, surrogate), rows)

    def kernel(
        self,
        posterior: AbstractPosterior,
        surrogate: Surrogate,
        metric: DenseMap | None = None,
        middle: Vector | None = None,
    ) -> SurrogateKernel:
        """The kernel on this surrogate."""
        dtype, dim = posterior.dtype, posterior.dim
        return SurrogateKernel(
            surrogate=surrogate,
            schedule=in_precision(Constant(self.step_size), dtype),
            length=on_device(self.length, np.int32),
            metric=DenseMap(on_device(np.eye(dim), dtype)) if metric is None else metric,
            middle=on_device(np.zeros(dim), dtype) if middle is None else middle,
            rest=surrogate.centre,
            delayed=self.delayed,
        )


_LARGEST_SD = 1.0  # of the log weights
_MORE = 8  # Times as many draws are compared if the first leave the bias unknown


def checked_after_run(account: Account, kernel: SurrogateKernel, run: Run) -> tuple[Account, int]:
    """The account with what all rows say about the draws of a run."""
    positions = run.positions()
    check = check_on_all_rows(kernel.surrogate, run.rows, positions)
    n_row_evals = check.n_row_evals
    if check.bias.imprecision(account.budget) > 1:  # for a draw far out, where the series is off
        count = min(_MORE * check.n_draws, positions.shape[0] * positions.shape[1])
        check = check_on_all_rows(kernel.surrogate, run.rows, positions, count)
        n_row_evals += check.n_row_evals
    account = account_with(check, account)
    if check.sd > _LARGEST_SD or check.heavy:
        account = account.doubting(
            f"the log density of the draws is off by {check.sd:.2g}, and the tail of the weights "
            f"has k = {check.tail:.2g}. "
            "Ask for exact draws: sample(..., exact=True)."
        )
    return account, n_row_evals


def account_with(check: Check, account: Account) -> Account:
    """The account with the errors that a check has found, and a sentence on it."""
    found = (
        f"checked on all rows at {check.n_draws} draws: the log density is off by {check.sd:.2g}"
    )
    return dataclasses.replace(account, bias=check.bias, reasons=(*account.reasons, found))
