"""The prepared transition of one chain: rows, gradient, dynamics and step size combined.

`draw` draws the randomness of many steps in one call. `gather` replaces row numbers by rows if the
numbers are known before the steps. `step` consumes the randomness of one step. A kernel holds no
rows; its functions take them as the argument `source`. Tables and anchors are leaves of one pytree,
so `jit` receives them as arguments, never as constants.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._core.arrays import Vector
from .._core.errors import Outcome
from .._core.random import derived_keys, key_of, random_words
from .._core.statistics import GroupMoments
from .._rows.access import AbstractRows
from ..correction import NoiseCorrection
from ..dynamics.dynamics import AbstractDynamics, PositionState
from ..gradient.estimator import AbstractGradient, Positions, row_gradient_sums
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior
from ..schedule import AbstractSchedule
from ..subsample.selection import AbstractSelection, Carried, Estimate, GradientAt, Transition


class Drawn(NamedTuple):
    """The randomness of several steps; the leading axis of every array is the step."""

    selection: Any  # the draws of the selection
    noise: Any  # the draws of the dynamics


class Gathered(NamedTuple):
    """`Drawn` with rows in place of the row numbers that are known ahead."""

    selection: Any
    noise: Any


class ChainState(eqx.Module):
    """The state of one chain: position and momentum (`motion`), and learned values."""

    motion: Any
    carried: Any

    @property
    def position(self) -> Float[Any, "*chains d"]:
        return self.motion.position


class NewChain(NamedTuple):
    """A chain before its first state."""

    key: PRNGKeyArray
    position: Vector
    carried: Any  # its memory, from `start_memory`
    gathered: Gathered  # the supply of one step


class KernelStep(NamedTuple):
    """The result of one step."""

    state: ChainState
    stats: dict[str, Array]  # statistics to keep with the draw
    outcome: Int[Array, ""] | np.int32 = np.int32(Outcome.OK)  # OK if the chain continues
    gradient: Vector | None = None  # the gradient estimate that the step used, if it used one


class AbstractKernel(eqx.Module):
    """The interface between a transition and the loop."""

    schedule: eqx.AbstractVar[AbstractSchedule]
    rest: eqx.AbstractVar[Vector]  # the position of failed chains: a step there is cheap

    @property
    @abc.abstractmethod
    def model(self) -> AbstractModel:
        """The model, without its rows."""

    @property
    @abc.abstractmethod
    def rows_per_step(self) -> int | None:
        """Rows touched per step; None if `step` must count them, as the statistic `batch_size`."""

    fewest_per_group: ClassVar[int] = 4
    """Chains that one program of a CPU should run at least."""
    longest_block: ClassVar[int] = 512
    """Steps whose random numbers are drawn in one call, at most."""

    @property
    def most_rows(self) -> int:
        """The largest number of rows that one step may touch."""
        assert self.rows_per_step is not None, "otherwise the kernel knows a bound"
        return self.rows_per_step

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        """Draw the randomness of `steps` steps; by default a key for each."""
        return Drawn(key_of(random_words(key, (steps,))), None)

    @abc.abstractmethod
    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        """Take one step."""

    # The defaults are those of a kernel whose steps read their rows themselves, without passes over
    # all rows between steps, and whose parameters are all in the position.

    @property
    def reads_rows(self) -> bool:
        """Whether steps read rows that the kernel does not hold itself."""
        return True

    @property
    def rows_ahead(self) -> int:
        """Rows per step that are known ahead, and can be gathered for many steps at once."""
        return 0

    def gather(self, drawn: Drawn, rows: AbstractRows) -> Gathered:
        """Replace the row numbers that are known ahead by rows."""
        return Gathered(drawn.selection, drawn.noise)

    @property
    def renewed_every(self) -> int | None:
        """`renew` is due before every step that is a multiple of this; None if never."""
        return None

    def due(self, step: int) -> bool:
        """Whether `renew` must be called before this step."""
        return self.renewed_every is not None and step > 0 and step % self.renewed_every == 0

    def renew(self, chains: ChainState, rows: AbstractRows) -> ChainState:
        """Make the pass over all rows that is due; return the new states. Called on the host."""
        return chains

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        """Passes over all rows in the first `step` steps, not counting the rows of each step."""
        return np.zeros_like(step)

    def rows_at_start(self) -> int:
        """Rows touched per chain to make the first state, not counting passes."""
        return 0

    def start_memory(self, positions: Positions, rows: AbstractRows) -> Any:
        """The stacked memory of chains that start here. On the host: it may pass over all rows."""
        return None

    def init(self, new: NewChain, rows: AbstractRows) -> ChainState:
        """The first state of a chain."""
        return ChainState(PositionState(new.position), new.carried)

    def broken_claim(self, chains: ChainState) -> str | None:
        """What happened in these chains that ends the claim of exactness, if anything did."""
        return None

    def after_burn_in(self, burn_in: int) -> Self:
        """The kernel of a run whose first `burn_in` steps are discarded."""
        return self

    def group_moments(
        self, chains: ChainState, counted: Bool[np.ndarray, " chains"], steps: int
    ) -> dict[str, GroupMoments]:
        """Moments of parameters beside the position, over `steps` steps of the counted chains."""
        return {}


class Kernel(AbstractKernel):
    """A transition composed of a gradient, a selection of rows, dynamics and a schedule."""

    gradient: AbstractGradient
    selection: AbstractSelection
    dynamics: AbstractDynamics
    schedule: AbstractSchedule
    rest: Vector
    noise_estimate: NoiseCorrection | None = None

    @property
    def model(self) -> AbstractModel:
        return self.gradient.model

    @property
    def rows_per_step(self) -> int | None:
        return self.selection.rows_per_step

    @property
    def rows_ahead(self) -> int:
        return self.selection.rows_ahead

    @property
    def most_rows(self) -> int:
        return self.selection.most_rows

    @property
    def renewed_every(self) -> int | None:
        # At most one part is renewed: only the simple estimator allows a calibrated correction.
        every = (part.renewed_every for part in self._renewed_parts())
        return next(filter(None, every), None)

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        passes = (part.passes_before(step) for part in self._renewed_parts())
        return sum(passes, np.zeros_like(step))

    def rows_at_start(self) -> int:
        return self.most_rows if self.dynamics.evaluates_at_start else 0

    def start_memory(self, positions: Positions, rows: AbstractRows) -> Carried:
        noise = None if self.noise_estimate is None else self.noise_estimate.start(positions, rows)
        return Carried(self.gradient.start(positions, rows), None, noise)

    def init(self, new: NewChain, rows: AbstractRows) -> ChainState:
        drawn, before = new.gathered.selection, new.carried
        carried = Carried(before.gradient, self.selection.start(drawn), before.noise)

        def evaluate(at: Vector, transition: Transition | None) -> Estimate:
            return self.estimate(at, drawn, rows, carried, transition)

        return ChainState(self.dynamics.init(new.key, new.position, evaluate), carried)

    def renew(self, chains: ChainState, rows: AbstractRows) -> ChainState:
        return ChainState(chains.motion, self.renewed_memory(chains.carried, chains.position, rows))

    def renewed_memory(self, carried: Carried, positions: Positions, rows: AbstractRows) -> Carried:
        """The stacked memories of chains at these positions after a pass over all rows."""
        row_sums = row_gradient_sums(self.model, positions, rows)
        gradient = self.gradient.renew(carried.gradient, positions, row_sums)
        noise = carried.noise
        if self.noise_estimate is not None:
            noise = self.noise_estimate.renew(noise, positions, row_sums)
        return Carried(gradient, carried.selection, noise)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        rows_key, noise_key = derived_keys(key, 2)
        noise = self.dynamics.noise(noise_key, steps, self.model.init)
        return Drawn(self.selection.draw(rows_key, steps), noise)

    def gather(self, drawn: Drawn, rows: AbstractRows) -> Gathered:
        return Gathered(self.selection.gather(drawn.selection, rows), drawn.noise)

    def estimate(
        self,
        position: Vector,
        gathered: Any,
        rows: AbstractRows,
        carried: Carried = Carried(),  # noqa: B008  (`Carried` is frozen)
        transition: Transition | None = None,
    ) -> Estimate:
        """Estimate the gradient at a position from the rows of one step."""
        at = GradientAt(self.gradient, position, carried, rows, transition)
        estimate = self.selection.estimate(at, gathered)
        if self.noise_estimate is None:
            return estimate
        return self.noise_estimate.measured(at, estimate)

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        def evaluate(at: Vector, transition: Transition | None) -> Estimate:
            return self.estimate(at, gathered.selection, rows, state.carried, transition)

        step_size = self.schedule(step).astype(state.position.dtype)
        moved = self.dynamics.step(state.motion, evaluate, step_size, gathered.noise)
        stats = {**moved.estimate.stats, **moved.stats}
        if self.rows_per_step is None:
            stats["batch_size"] = moved.estimate.n_rows
        new = ChainState(moved.state, moved.estimate.carried)
        return KernelStep(new, stats, moved.outcome, moved.estimate.gradient)

    def _renewed_parts(self) -> list[AbstractGradient | NoiseCorrection]:
        return [part for part in (self.gradient, self.noise_estimate) if part is not None]


class BoundKernel(eqx.Module):
    """A kernel and the posterior whose rows it uses."""

    kernel: AbstractKernel
    posterior: AbstractPosterior

    @property
    def rows(self) -> AbstractRows:
        return self.posterior.rows

    def check_start(self, positions: Float[np.ndarray, "chains d"]) -> None:
        """Raise `InvalidInput` unless chains may start at these positions."""
        if isinstance(self.kernel, Kernel) and self.kernel.dynamics.check_start is not None:
            self.kernel.dynamics.check_start(positions)

    @property
    def composition(self) -> Kernel:
        """The kernel as a `Kernel`. A `Method` prepares one; other methods may not."""
        assert isinstance(self.kernel, Kernel), f"{type(self.kernel).__name__} has no parts"
        return self.kernel
