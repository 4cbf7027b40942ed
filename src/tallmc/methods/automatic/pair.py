"""Measure the bias of step size and gradient noise with pairs of chains of step size ε and ε/2.

Both chains of a pair are driven by the same noise: while the coarse chain takes one step with
η = (η₁ + η₂)/√2, the fine chain takes two steps with η₁ and η₂. The chains stay close together, so
the difference of their averages has far less Monte-Carlo error than either average.

A bias c₁ε + c₂ε² + … makes the averages differ by c₁ε/2 + ¾c₂ε². Gradient noise gives the first
term; discretisation by the Leimkuhler–Matthews scheme begins with the second. Twice the difference
has the whole first term of the coarse chain's bias and more than its second term.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ...core.outcome import Outcome
from ...engine.kernel import (
    AbstractKernel,
    BoundKernel,
    ChainState,
    Drawn,
    Gathered,
    Kernel,
    KernelStep,
)
from ...engine.run import Run, chain_keys
from ...models.base import AbstractModel
from ...rows.base import AbstractRows
from ...schedule import Constant
from ..account import Bias

_BATCHES_PER_CHAIN = 8


class PairMotion(eqx.Module):
    """State of the dynamics of both chains of a pair."""

    position: Float[Array, " twice_d"]
    """Position of the coarse chain, then of the fine chain."""
    each: Any
    """Both motions, stacked along a leading axis."""
    held: Float[Array, " d"]
    """Noise of the last fine step, for the next coarse step."""


class PairKernel(AbstractKernel):
    """Two chains of one kernel; every step moves the fine chain, every second step both."""

    kernel: Kernel
    schedule: Constant
    """Step size of the coarse chain."""
    rest: Float[Array, " twice_d"]

    @classmethod
    def of(cls, kernel: Kernel) -> PairKernel:
        assert isinstance(kernel.schedule, Constant), "a pair requires a constant step size"
        rest = jnp.concatenate([kernel.rest, kernel.rest])
        return cls(kernel=kernel, schedule=kernel.schedule, rest=rest)

    @property
    def model(self) -> AbstractModel:
        return self.kernel.model

    @property
    def rows_per_step(self) -> None:
        return None

    @property
    def rows_ahead(self) -> int:
        return 2 * self.kernel.rows_ahead

    @property
    def most_rows(self) -> int:
        return 2 * self.kernel.most_rows

    @property
    def renewed_every(self) -> None:
        return None

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return 2 * self.kernel.passes_before(step)

    def rows_at_start(self) -> int:
        return 2 * self.kernel.rows_at_start()

    def start_memory(self, positions: Float[Array, "chains twice_d"], source: AbstractRows) -> Any:
        both = [
            self.kernel.start_memory(of_chains, source)
            for of_chains in jnp.split(positions, 2, axis=1)
        ]
        return jax.tree.map(lambda coarse, fine: jnp.stack([coarse, fine], axis=1), *both)

    def init(
        self,
        key: PRNGKeyArray,
        position: Float[Array, " twice_d"],
        memory: Any,
        source: AbstractRows,
    ) -> ChainState:
        start = jnp.split(position, 2)
        init = jax.vmap(self.kernel.init, in_axes=(0, 0, 0, None))
        both = init(jnp.stack([key, key]), jnp.stack(start), memory, source)
        return ChainState(PairMotion(position, both.motion, jnp.zeros_like(start[0])), both.memory)

    def renew(self, chains: ChainState, source: AbstractRows) -> ChainState:
        return chains

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        noise_key, *row_keys = jax.random.split(key, 3)
        draw = jax.vmap(lambda row_key: self.kernel.selection.draw(row_key, steps), out_axes=1)
        return Drawn(
            draw(jnp.stack(row_keys)), self.kernel.dynamics.noise(noise_key, steps, self.model.init)
        )

    def gather(self, drawn: Drawn, source: AbstractRows) -> Gathered:
        return self.kernel.gather(drawn, source)

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], source: AbstractRows
    ) -> KernelStep:
        before, moves_coarse = state.motion, step % 2 == 1
        coarse_step, fresh = self.schedule(step), gathered.noise
        noise = jnp.stack([(before.held + fresh) / jnp.sqrt(2.0).astype(fresh.dtype), fresh])

        def move(motion: Any, memory: Any, rows: Any, noise: Array, step_size: Array) -> KernelStep:
            kernel = eqx.tree_at(lambda k: k.schedule.step_size, self.kernel, step_size)
            return kernel.step(ChainState(motion, memory), Gathered(rows, noise), step, source)

        step_sizes = jnp.stack([coarse_step, coarse_step / 2])
        moved = jax.vmap(move)(before.each, state.memory, gathered.selection, noise, step_sizes)
        moves = jnp.stack([moves_coarse, jnp.bool_(True)])

        def if_moved(new: Array, old: Array) -> Array:
            return jnp.where(moves.reshape(2, *(1,) * (new.ndim - 1)), new, old)

        each = jax.tree.map(if_moved, moved.state.motion, before.each)
        memory = jax.tree.map(if_moved, moved.state.memory, state.memory)
        position = each.position.reshape(-1)
        stats = {
            "batch_size": jnp.sum(jnp.where(moves, moved.stats["batch_size"], 0), dtype=jnp.int32),
            "grad_noise": moved.stats["grad_noise"][1],
        }
        outcome = jnp.max(jnp.where(moves, moved.outcome, jnp.int32(Outcome.OK)))
        motion = PairMotion(position, each, fresh)
        return KernelStep(ChainState(motion, memory), stats, outcome, moved.gradient.reshape(-1))


class Pilot(NamedTuple):
    """Measurements from a run of pairs."""

    bias: Bias
    """Bias of the coarse chains."""
    positions: Float[np.ndarray, "chains draws d"]
    """Positions of the fine chains."""
    noise: Float[np.ndarray, " d"]
    """Variance of the gradient noise per parameter, relative to the posterior variance."""
    noise_of_one_draw: float
    """Gradient noise per coordinate of the geometry, with one row per step."""
    noise_per_coordinate: float
    """Gradient noise per coordinate of the geometry, at the actual rows per step."""
    squared_noise: Float[np.ndarray, " steps"]
    """‖Cᵀ noise‖² of single steps."""
    n_row_evals: int
    """Rows touched."""
    failed: bool
    """Whether a chain failed before the end."""

    @classmethod
    def at(cls, positions: Float[np.ndarray, "chains draws d"], noise_of_one_draw: float) -> Pilot:
        """Return the assumptions made before the first run: no bias, and this noise."""
        zeros = np.zeros(positions.shape[2])
        return cls(
            Bias(zeros, zeros, zeros, zeros),
            positions,
            zeros,
            noise_of_one_draw,
            0.0,
            zeros,
            0,
            False,
        )


def run_pairs(
    bound: BoundKernel, start: Float[Array, "chains d"], *, steps: int, burn_in: int, seed: int
) -> Pilot:
    """Run pairs of chains from `start`, at the step size of the kernel and at half of it.

    The coarse chains take `burn_in` steps and then `steps` steps.
    """
    pair = BoundKernel(PairKernel.of(bound.composition), bound.posterior)
    both = jnp.concatenate([start, start], axis=1)
    run = Run(pair, chain_keys(seed, len(start)), both, 2 * burn_in, 2, steps)
    run.run_to(steps)
    coarse, fine = np.split(run.positions().astype(np.float64), 2, axis=2)
    centre, sd = fine.mean(axis=(0, 1)), fine.std(axis=(0, 1))
    x, y = (coarse - centre) / sd, (fine - centre) / sd
    mean, mean_error = _mean_with_error(x - y)
    spread, spread_error = _mean_with_error((x**2 - y**2) / 2)
    totals = jax.tree.map(
        lambda leaf: np.asarray(leaf[:, 1], np.float64).sum(axis=0),
        run.state.chains.memory.selection,
    )
    squared_noise = run.sample_stats()["grad_noise"].ravel().astype(np.float64)
    return Pilot(
        bias=Bias(2 * mean, 2 * mean_error, 2 * spread, 2 * spread_error),
        positions=fine,
        noise=totals.sum_by_parameter / totals.steps / sd**2,
        noise_of_one_draw=float(totals.sum_of_one_draw / totals.steps),
        noise_per_coordinate=float(np.mean(squared_noise) / len(sd)),
        squared_noise=squared_noise,
        n_row_evals=run.rows_touched(),
        failed=any(outcome is not Outcome.OK for outcome in run.outcomes()),
    )


def _mean_with_error(values: Float[np.ndarray, "chains draws d"]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and its standard error by batch means."""
    chains, draws, d = values.shape
    length = draws // _BATCHES_PER_CHAIN
    batches = (
        values[:, : length * _BATCHES_PER_CHAIN]
        .reshape(chains * _BATCHES_PER_CHAIN, length, d)
        .mean(axis=1)
    )
    return batches.mean(axis=0), batches.std(axis=0, ddof=1) / np.sqrt(len(batches))
