"""One chain's transition, everything prepared: rows, gradient, dynamics and step size put together.

The randomness of many steps is drawn in one call (`supply`), then consumed a step at a time (`step`). Its parts hold the data
and the tables as leaves of one pytree, so they reach `jit` as arguments, never as constants.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ._posterior import AbstractPosterior
from ._rows import in_memory, take_rows
from .correction import AbstractNoiseEstimate
from .dynamics.base import AbstractDynamics
from .gradient.base import AbstractGradient, Batch
from .schedule import AbstractSchedule
from .subsample.selection import AbstractSelection, Estimate, Memory, Picks, Transition


class Supply(eqx.Module):
    """Everything random that a number of steps need."""

    rows: PyTree[Array]
    """Picks or, once their rows are gathered, a Batch; for a dynamic selection whatever it draws from."""
    noise: PyTree[Array]


class ChainState(eqx.Module):
    """Where a chain is, how it moves, and what it has learned."""

    motion: Any
    memory: Any

    @property
    def position(self) -> Float[Array, " d"]:
        return self.motion.position


class Stepped(NamedTuple):
    """What a step leaves: the next state, statistics worth keeping, and whether the chain may go on."""

    state: ChainState
    stats: dict[str, Array]
    outcome: Int[Array, ""] | np.int32


class AbstractKernel(eqx.Module):
    """What the loop needs to know of a transition."""

    schedule: eqx.AbstractVar[AbstractSchedule]
    rest: eqx.AbstractVar[Float[Array, " d"]]
    """Where a chain that has failed is put: a step there is cheap."""

    @property
    @abc.abstractmethod
    def posterior(self) -> AbstractPosterior:
        """What is sampled."""

    @property
    @abc.abstractmethod
    def rows_per_step(self) -> int | None:
        """Rows that each step touches; None when that is not known ahead, and `step` counts them as `batch_size`."""

    @property
    @abc.abstractmethod
    def rows_ahead(self) -> int:
        """Rows of each step that are known ahead, and so can be gathered with those of other steps."""

    @property
    @abc.abstractmethod
    def most_rows(self) -> int:
        """Most rows that one step may touch."""

    @abc.abstractmethod
    def passes_before(self, step: np.ndarray) -> np.ndarray:
        """Passes over all rows that the first `step` steps take, beside the rows each step touches."""

    @abc.abstractmethod
    def rows_at_start(self) -> int:
        """Rows that the first state takes, beside passes."""

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray, position: Float[Array, " d"]) -> ChainState:
        """The state of a chain that starts at `position`."""

    @abc.abstractmethod
    def supply(self, key: PRNGKeyArray, steps: int) -> Supply:
        """The randomness of `steps` steps."""

    @abc.abstractmethod
    def gather(self, supply: Supply) -> Supply:
        """The same supply with its rows in place of their numbers, where these are known ahead."""

    @abc.abstractmethod
    def step(self, state: ChainState, supply: Supply, step: Int[Array, ""]) -> Stepped:
        """One step."""


class Kernel(AbstractKernel):
    """A composition: one part on each axis."""

    gradient: AbstractGradient
    selection: AbstractSelection
    dynamics: AbstractDynamics
    schedule: AbstractSchedule
    rest: Float[Array, " d"]
    noise_estimate: AbstractNoiseEstimate | None = None

    @property
    def posterior(self) -> AbstractPosterior:
        return self.gradient.posterior

    @property
    def rows_per_step(self) -> int | None:
        return self.selection.rows_per_step

    @property
    def rows_ahead(self) -> int:
        return self.selection.rows_ahead

    @property
    def most_rows(self) -> int:
        return self.selection.most_rows

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        passes = self.gradient.passes_before(step)
        return passes if self.noise_estimate is None else passes + self.noise_estimate.passes_before(step)

    def rows_at_start(self) -> int:
        return self.most_rows if self.dynamics.evaluates_at_start else 0

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"]) -> ChainState:
        supply_key, dynamics_key = jax.random.split(key)
        supply = self.gather(jax.tree.map(lambda leaf: leaf[0], self.supply(supply_key, 1)))
        noise = None if self.noise_estimate is None else self.noise_estimate.start(position)
        memory = Memory(self.gradient.start(position), self.selection.start(supply.rows), noise)
        motion = self.dynamics.init(dynamics_key, position, lambda at, to: self.estimate(at, supply.rows, memory, to))
        return ChainState(motion, memory)

    def supply(self, key: PRNGKeyArray, steps: int) -> Supply:
        rows_key, noise_key = jax.random.split(key)
        noise = self.dynamics.noise(noise_key, steps, self.posterior.init)
        return Supply(self.selection.supply(rows_key, steps), noise)

    def gather(self, supply: Supply) -> Supply:
        def gathered(node: Any) -> Any:
            if not isinstance(node, Picks):
                return node
            indices = in_memory(node.indices) if node.indices.ndim > 1 else node.indices
            return Batch(take_rows(self.posterior.data, indices), node.weights, indices)

        return Supply(jax.tree.map(gathered, supply.rows, is_leaf=lambda node: isinstance(node, Picks)), supply.noise)

    def estimate(
        self,
        position: Float[Array, " d"],
        rows: PyTree[Array],
        memory: Memory = Memory(),  # noqa: B008  (it is frozen)
        transition: Transition | None = None,
    ) -> Estimate:
        """The gradient estimate at a position from one step's rows."""
        estimate = self.selection.estimate(self.gradient, position, memory, rows, transition)
        if self.noise_estimate is None:
            return estimate
        noise, learned = self.noise_estimate.covariance(position, estimate, memory.noise)
        return dataclasses.replace(estimate, noise=noise, memory=dataclasses.replace(estimate.memory, noise=learned))

    def step(self, state: ChainState, supply: Supply, step: Int[Array, ""]) -> Stepped:
        rows = self.gather(supply).rows
        memory = self._refreshed(state.memory, state.position, step)
        step_size = self.schedule(step).astype(state.position.dtype)
        moved = self.dynamics.step(state.motion, lambda at, to: self.estimate(at, rows, memory, to), step_size, supply.noise)
        stats = {**moved.estimate.stats, **moved.stats}
        if self.rows_per_step is None:
            stats["batch_size"] = moved.estimate.n_rows
        return Stepped(ChainState(moved.state, moved.estimate.memory), stats, moved.outcome)

    def _refreshed(self, memory: Memory, position: Float[Array, " d"], step: Int[Array, ""]) -> Memory:
        gradient = self.gradient.refresh(memory.gradient, position, step)
        noise = memory.noise if self.noise_estimate is None else self.noise_estimate.refresh(memory.noise, position, step)
        return Memory(gradient, memory.selection, noise)
