"""The prepared transition of one chain: rows, gradient, dynamics and step size combined.

`draw` draws the randomness of many steps in one call. `gather` replaces row numbers by rows if the
numbers are known before the steps. `step` consumes the randomness of one step. A kernel holds no
rows; its functions take them as the argument `source`. Tables and anchors are leaves of one pytree,
so `jit` receives them as arguments, never as constants.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..core.pytrees import stacked
from ..core.random import derived_keys
from ..correction.base import AbstractNoiseEstimate
from ..dynamics.base import AbstractDynamics
from ..gradient.base import AbstractGradient
from ..gradient.row_sums import row_gradient_sums
from ..models.base import AbstractModel
from ..models.posterior import AbstractPosterior
from ..rows.base import AbstractRows
from ..schedule.base import AbstractSchedule
from ..statistics.group_moments import GroupMoments
from ..subsample.selection import AbstractSelection, Estimate, Memory, Transition


class Drawn(NamedTuple):
    """The randomness of several steps; the leading axis of every array is the step."""

    selection: Any
    """The draws of the selection."""
    noise: Any
    """The draws of the dynamics."""


class Gathered(NamedTuple):
    """`Drawn` with rows in place of the row numbers that are known ahead."""

    selection: Any
    noise: Any


class ChainState(eqx.Module):
    """The state of one chain: position and momentum (`motion`), and learned values (`memory`)."""

    motion: Any
    memory: Any

    @property
    def position(self) -> Float[Any, "*chains d"]:
        return self.motion.position


class KernelStep(NamedTuple):
    """The result of one step."""

    state: ChainState
    stats: dict[str, Array]
    """Statistics to keep with the draw."""
    outcome: Int[Array, ""] | np.int32
    """The `Outcome`: OK if the chain continues."""
    gradient: Float[Array, " d"]
    """The gradient estimate that the step used."""


class AbstractKernel(eqx.Module):
    """The interface between a transition and the loop."""

    schedule: eqx.AbstractVar[AbstractSchedule]
    rest: eqx.AbstractVar[Float[Array, " d"]]
    """The position of failed chains: a step there is cheap."""

    @property
    @abc.abstractmethod
    def model(self) -> AbstractModel:
        """The model, without its rows."""

    @property
    @abc.abstractmethod
    def rows_per_step(self) -> int | None:
        """Rows touched per step; None if `step` must count them, as the statistic `batch_size`."""

    @property
    @abc.abstractmethod
    def rows_ahead(self) -> int:
        """Rows per step that are known ahead, and can be gathered for many steps at once."""

    @property
    @abc.abstractmethod
    def most_rows(self) -> int:
        """The largest number of rows that one step may touch."""

    @property
    @abc.abstractmethod
    def renewed_every(self) -> int | None:
        """`renew` is due before every step that is a multiple of this; None if never."""

    def due(self, step: int) -> bool:
        """Whether `renew` must be called before this step."""
        return self.renewed_every is not None and step > 0 and step % self.renewed_every == 0

    @abc.abstractmethod
    def passes_before(self, step: np.ndarray) -> np.ndarray:
        """Passes over all rows in the first `step` steps, not counting the rows of each step."""

    @abc.abstractmethod
    def rows_at_start(self) -> int:
        """Rows touched per chain to make the first state, not counting passes."""

    @abc.abstractmethod
    def broken_claim(self, chains: ChainState) -> str | None:
        """What happened in these chains that ends the claim of exactness, if anything did."""

    @abc.abstractmethod
    def after_burn_in(self, burn_in: int) -> Self:
        """The kernel of a run whose first `burn_in` steps are discarded."""

    @abc.abstractmethod
    def group_moments(
        self, chains: ChainState, counted: Bool[np.ndarray, " chains"], steps: int
    ) -> dict[str, GroupMoments]:
        """Moments of parameters beside the position, over `steps` steps of the counted chains."""

    @abc.abstractmethod
    def start_memory(self, positions: Float[Array, "chains d"], source: AbstractRows) -> Any:
        """The memory of chains that start at these positions, stacked.

        Called on the host, so it may make passes over all rows.
        """

    @abc.abstractmethod
    def init(
        self,
        key: PRNGKeyArray,
        position: Float[Array, " d"],
        memory: Any,
        gathered: Gathered,
        source: AbstractRows,
    ) -> ChainState:
        """The state of a chain that starts at `position` with this memory.

        `gathered` is the supply of one step.
        """

    @abc.abstractmethod
    def renew(self, chains: ChainState, source: AbstractRows) -> ChainState:
        """Make the pass over all rows that is due; return the new states. Called on the host."""

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        """Draw the randomness of `steps` steps."""

    @abc.abstractmethod
    def gather(self, drawn: Drawn, source: AbstractRows) -> Gathered:
        """Replace the row numbers that are known ahead by rows."""

    @abc.abstractmethod
    def step(
        self,
        state: ChainState,
        gathered: Gathered,
        step: Int[Array, ""],
        source: AbstractRows,
    ) -> KernelStep:
        """Take one step."""


class AbstractPositionKernel(AbstractKernel):
    """A kernel whose parameters are all in the position."""

    def after_burn_in(self, burn_in: int) -> Self:
        return self

    def group_moments(
        self, chains: ChainState, counted: Bool[np.ndarray, " chains"], steps: int
    ) -> dict[str, GroupMoments]:
        return {}


class AbstractReadingKernel(AbstractPositionKernel):
    """A transition whose steps read their rows themselves, without passes between steps."""

    @property
    def rows_ahead(self) -> int:
        return 0

    @property
    def renewed_every(self) -> None:
        return None

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.zeros_like(step)

    def renew(self, chains: ChainState, source: AbstractRows) -> ChainState:
        return chains

    def gather(self, drawn: Drawn, source: AbstractRows) -> Gathered:
        return Gathered(drawn.selection, drawn.noise)


class Kernel(AbstractPositionKernel):
    """A transition composed of a gradient, a selection of rows, dynamics and a schedule."""

    gradient: AbstractGradient
    selection: AbstractSelection
    dynamics: AbstractDynamics
    schedule: AbstractSchedule
    rest: Float[Array, " d"]
    noise_estimate: AbstractNoiseEstimate | None = None

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
        return next(
            (part.renewed_every for part in self._renewed_parts() if part.renewed_every), None
        )

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return sum(
            (part.passes_before(step) for part in self._renewed_parts()), np.zeros_like(step)
        )

    def broken_claim(self, chains: ChainState) -> None:
        return None

    def rows_at_start(self) -> int:
        return self.most_rows if self.dynamics.evaluates_at_start else 0

    def start_memory(self, positions: Float[Array, "chains d"], source: AbstractRows) -> Memory:
        noise = (
            None if self.noise_estimate is None else self.noise_estimate.start(positions, source)
        )
        return Memory(self.gradient.start(positions, source), None, noise)

    def init(
        self,
        key: PRNGKeyArray,
        position: Float[Array, " d"],
        memory: Memory,
        gathered: Gathered,
        source: AbstractRows,
    ) -> ChainState:
        memory = Memory(memory.gradient, self.selection.start(gathered.selection), memory.noise)

        def evaluate(at: Float[Array, " d"], transition: Transition | None) -> Estimate:
            return self.estimate(at, gathered.selection, source, memory, transition)

        return ChainState(self.dynamics.init(key, position, evaluate), memory)

    def renew(self, chains: ChainState, source: AbstractRows) -> ChainState:
        return ChainState(
            chains.motion, self.renewed_memory(chains.memory, chains.position, source)
        )

    def renewed_memory(
        self, memory: Memory, positions: Float[Array, "chains d"], source: AbstractRows
    ) -> Memory:
        """The stacked memories of chains at these positions after a pass over all rows."""
        row_sums = row_gradient_sums(self.model, positions, source)
        gradient = self.gradient.renew(memory.gradient, positions, row_sums)
        noise = memory.noise
        if self.noise_estimate is not None:
            noise = self.noise_estimate.renew(noise, positions, row_sums)
        return Memory(gradient, memory.selection, noise)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        rows_key, noise_key = derived_keys(key, 2)
        noise = self.dynamics.noise(noise_key, steps, self.model.init)
        return Drawn(self.selection.draw(rows_key, steps), noise)

    def gather(self, drawn: Drawn, source: AbstractRows) -> Gathered:
        return Gathered(self.selection.gather(drawn.selection, source), drawn.noise)

    def estimate(
        self,
        position: Float[Array, " d"],
        gathered: Any,
        source: AbstractRows,
        memory: Memory = Memory(),  # noqa: B008  (`Memory` is frozen)
        transition: Transition | None = None,
    ) -> Estimate:
        """Estimate the gradient at a position from the rows of one step."""
        estimate = self.selection.estimate(
            self.gradient, position, memory, gathered, source, transition
        )
        if self.noise_estimate is None:
            return estimate
        return self.noise_estimate.measured(self.gradient, position, estimate, memory)

    def step(
        self,
        state: ChainState,
        gathered: Gathered,
        step: Int[Array, ""],
        source: AbstractRows,
    ) -> KernelStep:
        def evaluate(at: Float[Array, " d"], transition: Transition | None) -> Estimate:
            return self.estimate(at, gathered.selection, source, state.memory, transition)

        step_size = self.schedule(step).astype(state.position.dtype)
        moved = self.dynamics.step(state.motion, evaluate, step_size, gathered.noise)
        stats = {**moved.estimate.stats, **moved.stats}
        if self.rows_per_step is None:
            stats["batch_size"] = moved.estimate.n_rows
        new = ChainState(moved.state, moved.estimate.memory)
        return KernelStep(new, stats, moved.outcome, moved.estimate.gradient)

    def _renewed_parts(self) -> tuple[AbstractGradient | AbstractNoiseEstimate, ...]:
        return (
            (self.gradient,)
            if self.noise_estimate is None
            else (self.gradient, self.noise_estimate)
        )


class BoundKernel(eqx.Module):
    """A kernel and the posterior whose rows it uses."""

    kernel: AbstractKernel
    posterior: AbstractPosterior
    chain_axes: Any = None
    """`in_axes` of `jax.vmap` over the kernel; None if no array has one entry per chain."""

    @classmethod
    def side_by_side(cls, of_chains: Sequence[BoundKernel]) -> BoundKernel:
        """Combine kernels of the same structure: chain k runs the k-th kernel.

        Arrays that all kernels share, such as the model's, are not copied. Equal scalars are not
        stacked either, so the schedule has a single step size for all chains.
        """
        kernel, axes = stacked([bound.kernel for bound in of_chains])
        return cls(kernel, of_chains[0].posterior, axes)

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
