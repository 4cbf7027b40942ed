"""Hamiltonian Monte Carlo on the surrogate, and delayed acceptance on all rows.

With u = μ + Sv from a mean and a metric of draws, Ŝ is close to ‖v‖²/2, and a trajectory would be a
rotation of v and its momentum ρ. A step of the chain is L such turns by an angle δ between kicks by
what is not Gaussian (Shahbaba et al., 2014), with ρ ~ N(0, I) and δ uniform on ε[0.8, 1.2]:

    ρ ← ρ − (δ/2)(∇Ŝ − v);   (v, ρ) turns by δ;   ρ ← ρ − (δ/2)(∇Ŝ − v)

accepted with probability min(1, exp(Ŝ + ‖ρ‖²/2 − Ŝ' − ‖ρ'‖²/2)). It reads the hard rows only, and
all chains run in step. *Delayed acceptance* makes such chains exact: several trajectories are a
proposal that is reversible for exp(−Ŝ), so accepting where they end with probability
min(1, w(u')/w(u)), from one pass over all rows, leaves the posterior invariant.
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

from .._anchor.anchor import Anchor, AnchorLevel
from .._core.arrays import DenseMap, Scalar, Vector, on_device
from .._core.errors import Outcome, check_int, check_number
from .._core.random import derived_keys, standard_normal
from .._engine.kernel import AbstractKernel, BoundKernel, ChainState, Drawn, Gathered, KernelStep
from .._engine.run import Run
from .._rows.access import AbstractRows
from ..dynamics.dynamics import AbstractDynamicsState, acceptance_rate
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior
from ..schedule import AbstractSchedule, Constant, in_precision
from .abstract import (
    AbstractMethod,
    Account,
    PreparedMethod,
    check_row_access,
    prepare_anchor,
)
from .surrogate import Expansion, RowSizes, SeriesSurrogate, check_on_all_rows, make_surrogate

_SMALLEST_TURN, _LARGEST_TURN = 0.8, 1.2
_PER_PROPOSAL = 3
"""Trajectories per pass over all rows, with delayed acceptance."""


class TrajectoryState(AbstractDynamicsState):
    """A point between two trajectories."""

    position: Vector
    """θ."""
    whitened: Vector
    """v."""
    potential: Scalar
    """Ŝ."""
    gradient: Vector
    """∇Ŝ with respect to v."""
    log_weight: Scalar
    """log w(u) with delayed acceptance, otherwise 0."""


class SurrogateKernel(AbstractKernel):
    """Trajectories on the surrogate; with delayed acceptance, several of them and a pass."""

    surrogate: SeriesSurrogate
    schedule: AbstractSchedule
    """ε, the mean angle of a turn."""
    length: Int[Array, ""]
    """L."""
    metric: DenseMap
    """S."""
    middle: Vector
    """μ."""
    rest: Vector
    delayed: bool = eqx.field(static=True)
    n_rows: Int[Array, ""]
    """N."""

    fewest_per_group, longest_block = 16, 64

    @property
    def model(self) -> AbstractModel:
        return self.surrogate.model

    @property
    def rows_per_step(self) -> int:
        per_trajectory = self.surrogate.n_hard * int(self.length)
        return per_trajectory * self._trajectories + self._rows_of_pass

    @property
    def _trajectories(self) -> int:
        return _PER_PROPOSAL if self.delayed else 1

    def rows_at_start(self) -> int:
        return self.surrogate.n_hard + self._rows_of_pass

    @property
    def reads_rows(self) -> bool:
        return self.delayed

    @property
    def _rows_of_pass(self) -> int:
        return int(self.n_rows) if self.delayed else 0

    def start_memory(self, positions: Float[Array, "chains d"], rows: AbstractRows) -> Any:
        """v of the chains, from the host, which has float64."""
        metric = np.asarray(self.metric.factor, np.float64)
        u = self.surrogate.whitened(np.asarray(positions))
        v = np.linalg.solve(metric, (u - np.asarray(self.middle, np.float64)).T).T
        return on_device(v, positions.dtype)

    def init(
        self,
        key: PRNGKeyArray,
        position: Vector,
        carried: Vector,
        gathered: Gathered,
        rows: AbstractRows,
    ) -> ChainState:
        u = self._u(carried)
        motion = TrajectoryState(
            self.surrogate.position(u),
            carried,
            self.surrogate.potential(u),
            self._gradient(carried),
            self._log_weight(u, rows) if self.delayed else jnp.zeros((), u.dtype),
        )
        return ChainState(motion, None)

    def _log_weight(self, u: Vector, rows: AbstractRows) -> Scalar:
        return self.surrogate.log_weights(u[None], rows)[0]

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        momentum_key, accept_key, turn_key = derived_keys(key, 3)
        like, shape = self.rest, (steps, self._trajectories)
        noise = (
            standard_normal(momentum_key, (*shape, *like.shape), like.dtype),
            -jax.random.exponential(accept_key, (steps, self._trajectories + 1), like.dtype),
            jax.random.uniform(turn_key, shape, like.dtype, _SMALLEST_TURN, _LARGEST_TURN),
        )
        return Drawn((), noise)

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        momenta, log_uniforms, turns = gathered.noise
        sizes = self.schedule(step).astype(momenta.dtype) * turns
        before = motion = state.motion
        rates: list[Scalar] = []
        for number in range(self._trajectories):
            motion, rate = self._trajectory(
                motion, momenta[number], sizes[number], log_uniforms[number]
            )
            rates.append(rate)
        stats = {"acceptance_rate": jnp.mean(jnp.stack(rates))}
        if self.delayed:
            log_weight = self._log_weight(self._u(motion.whitened), rows)
            log_ratio = log_weight - before.log_weight
            motion = eqx.tree_at(lambda m: m.log_weight, motion, log_weight)
            accept = log_uniforms[-1] < log_ratio
            motion = jax.tree.map(lambda new, old: jnp.where(accept, new, old), motion, before)
            stats["delayed_acceptance_rate"] = acceptance_rate(log_ratio)
        return KernelStep(
            ChainState(motion, None), stats, jnp.int32(Outcome.OK), jnp.zeros_like(self.rest)
        )

    def _trajectory(
        self, motion: TrajectoryState, momentum: Vector, turn: Scalar, log_uniform: Scalar
    ) -> tuple[TrajectoryState, Scalar]:
        cosine, sine = jnp.cos(turn), jnp.sin(turn)

        def advance(_: Any, carry: tuple[Vector, Vector, Vector]) -> tuple[Vector, Vector, Vector]:
            v, momentum, gradient = carry
            momentum = momentum - turn / 2 * (gradient - v)
            v, momentum = cosine * v + sine * momentum, cosine * momentum - sine * v
            gradient = self._gradient(v)
            return v, momentum - turn / 2 * (gradient - v), gradient

        first = motion.whitened, momentum, motion.gradient
        v, last, gradient = lax.fori_loop(0, self.length, advance, first)
        u = self._u(v)
        potential = self.surrogate.potential(u)
        kinetic = jnp.sum(last**2) / 2 - jnp.sum(momentum**2) / 2
        log_ratio = motion.potential - potential - kinetic
        position = self.surrogate.position(u)
        end = TrajectoryState(position, v, potential, gradient, motion.log_weight)
        accept = log_uniform < log_ratio
        moved = jax.tree.map(lambda new, old: jnp.where(accept, new, old), end, motion)
        return moved, acceptance_rate(log_ratio)

    def _u(self, v: Vector) -> Vector:
        return self.middle + self.metric.push(v)

    def _gradient(self, v: Vector) -> Vector:
        """The gradient of Ŝ(μ + Sv) with respect to v."""
        return self.metric.pull(self.surrogate.gradient(self._u(v)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurrogateHMC(AbstractMethod):
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
    needs = AnchorLevel.HESSIAN

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
        return {
            "dynamics": "HMC" + (" with delayed acceptance" if self.delayed else ""),
            "gradient": "hard rows and a series",
            "subsample": "hard rows",
            "size": "fixed",
        }

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        check_row_access(self, posterior)
        found, n_row_evals = prepare_anchor(posterior, anchor, self.needs)
        assert found is not None, "the method requires an anchor"
        expansion = Expansion.at_anchor(posterior, found)
        sizes = RowSizes.of(posterior, expansion)
        surrogate = make_surrogate(posterior, expansion, sizes, self.hard_rows)
        kernel = self.kernel(posterior, surrogate)
        rows = n_row_evals + expansion.n_row_evals + posterior.n_rows
        return PreparedMethod(BoundKernel(kernel, posterior), found, rows)

    def kernel(
        self,
        posterior: AbstractPosterior,
        surrogate: SeriesSurrogate,
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
            n_rows=on_device(posterior.n_rows, np.int32),
        )


_LARGEST_SD = 1.0  # of the log weights


def checked_after_run(account: Account, kernel: SurrogateKernel, run: Run) -> tuple[Account, int]:
    """The account with what all rows say about the draws of a run."""
    check = check_on_all_rows(kernel.surrogate, run.rows, run.positions())
    found = (
        f"checked on all rows at {check.n_draws} draws: the log density is off by {check.sd:.2g}",
    )
    account = dataclasses.replace(account, bias=check.bias, reasons=account.reasons + found)
    if check.sd > _LARGEST_SD:
        account = account.doubting(
            f"the log density of the draws is off by {check.sd:.2g}. "
            "Ask for exact draws: sample(..., exact=True)."
        )
    return account, check.n_row_evals
