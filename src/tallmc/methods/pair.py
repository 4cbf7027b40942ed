"""Measure the bias of step size and gradient noise with pairs of chains of step size ε and ε/2.

While the coarse chain of a pair takes one step, the fine chain takes two. Both are driven by the
same noise, (η₁ + η₂)/√2 for the coarse chain, and the coarse step sees the rows of the first fine
step. The chains stay close together, so the difference of their averages has far less Monte-Carlo
error than either average. Each chain alone has the law of its own step size.

A bias c₁ε + c₂ε² + … makes the averages differ by c₁ε/2 + ¾c₂ε². Twice the difference has the whole
first term of the coarse chain's bias and more than its second term. A bias that does not vanish
with the step size remains unseen (`DynamicsChoice.unseen_by_pairs`).
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..core.outcome import Outcome
from ..core.pytrees import stacked
from ..engine.kernel import (
    AbstractKernel,
    BoundKernel,
    ChainState,
    Drawn,
    Gathered,
    Kernel,
    KernelStep,
)
from ..engine.run import Run, chain_keys
from ..models.base import AbstractModel
from ..rows.base import AbstractRows
from ..schedule import Constant, in_precision
from ..schedule.base import AbstractSchedule
from .account import Bias

_PAIRS_PURPOSE = 2  # separates the keys of pairs from the keys of the run


class PairMotion(eqx.Module):
    """State of the dynamics of both chains of a pair."""

    position: Float[Array, "*chains twice_d"]
    """Position of the coarse chain, then of the fine chain."""
    each: Any
    """Both motions, stacked along a leading axis."""


class PairKernel(AbstractKernel):
    """Two chains of one kernel. A step is one step of the coarse chain and two of the fine one."""

    kernel: Kernel
    """The kernel of both chains; `step` sets its step size."""
    schedule: AbstractSchedule
    """Step size of the coarse chain."""
    rest: Float[Array, " twice_d"]

    @classmethod
    def of(cls, kernel: Kernel) -> PairKernel:
        step_size = in_precision(Constant(1.0), kernel.rest.dtype)
        at_any_step = eqx.tree_at(lambda k: k.schedule, kernel, step_size)
        rest = jnp.concatenate([kernel.rest, kernel.rest])
        return cls(kernel=at_any_step, schedule=kernel.schedule, rest=rest)

    @property
    def model(self) -> AbstractModel:
        return self.kernel.model

    @property
    def rows_per_step(self) -> int | None:
        return None if self.kernel.rows_per_step is None else 3 * self.kernel.rows_per_step

    @property
    def rows_ahead(self) -> int:
        return 2 * self.kernel.rows_ahead

    @property
    def most_rows(self) -> int:
        return 3 * self.kernel.most_rows

    @property
    def renewed_every(self) -> int | None:
        return self.kernel.renewed_every

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return 2 * self.kernel.passes_before(step)

    def rows_at_start(self) -> int:
        return 2 * self.kernel.rows_at_start()

    def start_memory(self, positions: Float[Array, "chains twice_d"], source: AbstractRows) -> Any:
        return _paired(self.kernel.start_memory(_each_chain(positions), source))

    def init(
        self,
        key: PRNGKeyArray,
        position: Float[Array, " twice_d"],
        memory: Any,
        source: AbstractRows,
    ) -> ChainState:
        init = jax.vmap(self.kernel.init, in_axes=(None, 0, 0, None))
        both = init(key, position.reshape(2, -1), memory, source)
        return ChainState(PairMotion(position, both.motion), both.memory)

    def renew(self, chains: ChainState, source: AbstractRows) -> ChainState:
        memory = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), chains.memory)
        renewed = self.kernel.renewed_memory(memory, _each_chain(chains.position), source)
        return ChainState(chains.motion, _paired(renewed))

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        drawn = self.kernel.draw(key, 2 * steps)
        return jax.tree.map(lambda leaf: leaf.reshape(steps, 2, *leaf.shape[1:]), drawn)

    def gather(self, drawn: Drawn, source: AbstractRows) -> Gathered:
        return self.kernel.gather(drawn, source)

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], source: AbstractRows
    ) -> KernelStep:
        first, second = (jax.tree.map(lambda leaf, k=k: leaf[k], gathered) for k in (0, 1))
        coarse = self.kernel.dynamics
        dynamics, axes = stacked([coarse, coarse.finer()])
        step_sizes = self.schedule(step) * jnp.array([1.0, 0.5], self.rest.dtype)
        noise = coarse.merged_noise(first.noise, second.noise)
        noises = jax.tree.map(lambda *of_both: jnp.stack(of_both), noise, first.noise)

        def move(
            dynamics: Any, motion: Any, memory: Any, noise: Any, step_size: Array
        ) -> KernelStep:
            kernel = eqx.tree_at(
                lambda k: (k.dynamics, k.schedule.step_size), self.kernel, (dynamics, step_size)
            )
            supply = Gathered(first.selection, noise)
            return kernel.step(ChainState(motion, memory), supply, step, source)

        both = jax.vmap(move, in_axes=(axes, 0, 0, 0, 0))(
            dynamics, state.motion.each, state.memory, noises, step_sizes
        )
        halfway = jax.tree.map(lambda leaf: leaf[1], both.state)
        finer = eqx.tree_at(
            lambda k: (k.dynamics, k.schedule.step_size),
            self.kernel,
            (coarse.finer(), step_sizes[1]),
        )
        last = finer.step(halfway, second, step, source)
        motion, memory = jax.tree.map(
            lambda leaf, new: leaf.at[1].set(new),
            (both.state.motion, both.state.memory),
            (last.state.motion, last.state.memory),
        )
        stats = {name: last.stats[name] for name in ("grad_noise",) if name in last.stats}
        if self.rows_per_step is None:
            rows = jnp.sum(both.stats["batch_size"]) + last.stats["batch_size"]
            stats["batch_size"] = rows.astype(jnp.int32)
        outcome = jnp.maximum(
            jnp.max(jnp.asarray(both.outcome, jnp.int32)), jnp.asarray(last.outcome, jnp.int32)
        )
        gradient = jnp.concatenate([both.gradient[0], last.gradient])
        pair = PairMotion(motion.position.reshape(-1), motion)
        return KernelStep(ChainState(pair, memory), stats, outcome, gradient)


def _each_chain(positions: Float[Array, "chains twice_d"]) -> Float[Array, "twice_chains d"]:
    return positions.reshape(2 * len(positions), -1)


def _paired(of_chains: Any) -> Any:
    """Arrays of single chains, as arrays with a leading axis of pairs."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, 2, *leaf.shape[1:]), of_chains)


class PairRun:
    """Pairs of chains that have run from `start`, the coarse one at the step size of the kernel.

    **Arguments:**

    - `bound`: the kernel of a composition.
    - `start`: one position per pair.
    - `burn_in`, `thin`: steps of the coarse chains.
    - `draws`: draws per chain.
    - `seed`: the seed.
    - `memory`: what each chain has learned before, as in the state of a run; None starts anew.
    """

    def __init__(
        self,
        bound: BoundKernel,
        start: Float[Array, "chains d"],
        *,
        burn_in: int,
        draws: int,
        thin: int = 1,
        seed: int = 0,
        memory: Any = None,
    ):
        pair = BoundKernel(PairKernel.of(bound.composition), bound.posterior)
        both = jnp.concatenate([start, start], axis=1)
        if memory is not None:
            memory = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf], axis=1), memory)
        keys = chain_keys(seed, len(start), _PAIRS_PURPOSE)
        self.run = Run(pair, keys, both, burn_in, thin, draws, memory=memory)
        self.run.run_to(draws)

    @property
    def failed(self) -> bool:
        """Whether a chain failed before the end."""
        return any(outcome is not Outcome.OK for outcome in self.run.outcomes())

    @property
    def n_row_evals(self) -> int:
        """Rows touched."""
        return self.run.rows_touched()

    def positions(self) -> tuple[np.ndarray, np.ndarray]:
        """The draws of the coarse chains and of the fine chains."""
        coarse, fine = np.split(self.run.positions().astype(np.float64), 2, axis=2)
        return coarse, fine

    def bias(self, batches: int = 8) -> Bias:
        """Bias of the coarse chains; `batches` per chain give its error."""
        coarse, fine = self.positions()
        centre, sd = fine.mean(axis=(0, 1)), fine.std(axis=(0, 1))
        sd = np.maximum(sd, np.finfo(float).tiny)
        x, y = (coarse - centre) / sd, (fine - centre) / sd
        mean, mean_error = _mean_with_error(x - y, batches)
        spread, spread_error = _mean_with_error((x**2 - y**2) / 2, batches)
        return Bias(2 * mean, 2 * mean_error, 2 * spread, 2 * spread_error)


def _mean_with_error(
    values: Float[np.ndarray, "chains draws d"], batches: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and its standard error by batch means."""
    chains, draws, d = values.shape
    length = draws // batches
    means = values[:, : length * batches].reshape(chains * batches, length, d).mean(axis=1)
    return means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(len(means))
