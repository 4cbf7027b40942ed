"""How much a step size and gradient noise bias the draws: two chains, one at step ε and one at ε/2, driven by the same noise.

While the coarse chain takes one step with η = (η₁ + η₂)/√2, the fine one takes two with η₁ and η₂. They stay close together, so
that the difference of their averages has far less Monte-Carlo error than either average. A bias c₁ε + c₂ε² + … (gradient noise
gives the first term, discretisation by the Leimkuhler–Matthews scheme begins with the second) makes them differ by c₁ε/2 + ¾c₂ε²:
twice the difference is the coarse chain's whole bias of the first kind and more than that of the second.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._account import Bias
from .._kernel import AbstractKernel, ChainState, Kernel, Stepped, Supply
from .._outcome import Outcome
from .._posterior import AbstractPosterior
from .._run import Run
from ..schedule import Constant

_BATCHES_PER_CHAIN = 8


class PairMotion(eqx.Module):
    position: Float[Array, " 2d"]
    """The coarse chain's, then the fine one's."""
    each: Any
    """Both motions, along a leading axis."""
    held: Float[Array, " d"]
    """Noise of the fine chain's last step, for the coarse one."""


class PairKernel(AbstractKernel):
    """Two chains of one kernel: an odd step moves the fine one, an even step both."""

    kernel: Kernel
    schedule: Constant
    """The coarse chain's."""
    rest: Float[Array, " 2d"]

    @classmethod
    def of(cls, kernel: Kernel) -> PairKernel:
        assert isinstance(kernel.schedule, Constant), "a pair is made of constant steps"
        rest = jnp.concatenate([kernel.rest, kernel.rest])
        return cls(kernel=kernel, schedule=kernel.schedule, rest=rest)

    @property
    def posterior(self) -> AbstractPosterior:
        return self.kernel.posterior

    @property
    def rows_per_step(self) -> None:
        return None

    @property
    def rows_ahead(self) -> int:
        return 2 * self.kernel.rows_ahead

    @property
    def most_rows(self) -> int:
        return 2 * self.kernel.most_rows

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return 2 * self.kernel.passes_before(step)

    def rows_at_start(self) -> int:
        return 2 * self.kernel.rows_at_start()

    def init(self, key: PRNGKeyArray, position: Float[Array, " 2d"]) -> ChainState:
        start = jnp.split(position, 2)
        both = jax.vmap(self.kernel.init)(jnp.stack([key, key]), jnp.stack(start))
        return ChainState(PairMotion(position, both.motion, jnp.zeros_like(start[0])), both.memory)

    def supply(self, key: PRNGKeyArray, steps: int) -> Supply:
        noise_key, *row_keys = jax.random.split(key, 3)
        rows = jax.vmap(lambda of_chain: self.kernel.selection.supply(of_chain, steps), out_axes=1)(jnp.stack(row_keys))
        return Supply(rows, self.kernel.dynamics.noise(noise_key, steps, self.posterior.init))

    def gather(self, supply: Supply) -> Supply:
        return self.kernel.gather(supply)

    def step(self, state: ChainState, supply: Supply, step: Int[Array, ""]) -> Stepped:
        before, moves_coarse = state.motion, step % 2 == 1
        size = self.schedule(step)
        noise = jnp.stack([(before.held + supply.noise) / jnp.sqrt(2.0).astype(supply.noise.dtype), supply.noise])

        def move(motion: Any, memory: Any, rows: Any, noise: Array, step_size: Array) -> Stepped:
            kernel = eqx.tree_at(lambda k: k.schedule.step_size, self.kernel, step_size)
            return kernel.step(ChainState(motion, memory), Supply(rows, noise), step)

        moved = jax.vmap(move)(before.each, state.memory, supply.rows, noise, jnp.stack([size, size / 2]))
        keep = jnp.stack([moves_coarse, jnp.bool_(True)])

        def chosen(new: Array, old: Array) -> Array:
            return jnp.where(keep.reshape(2, *(1,) * (new.ndim - 1)), new, old)

        each = jax.tree.map(chosen, moved.state.motion, before.each)
        memory = jax.tree.map(chosen, moved.state.memory, state.memory)
        position = each.position.reshape(-1)
        stats = {
            "batch_size": jnp.sum(jnp.where(keep, moved.stats["batch_size"], 0), dtype=jnp.int32),
            "grad_noise": moved.stats["grad_noise"][1],
        }
        outcome = jnp.max(jnp.where(keep, moved.outcome, jnp.int32(Outcome.OK)))
        return Stepped(ChainState(PairMotion(position, each, supply.noise), memory), stats, outcome)


class Pilot(NamedTuple):
    """What a run of pairs has shown."""

    bias: Bias
    positions: Float[np.ndarray, "chains draws d"]
    """The fine chains'."""
    noise: Float[np.ndarray, " d"]
    """Variance of the gradient noise by parameter, as a share of the posterior's."""
    noise_of_one_draw: float
    """Per coordinate of the geometry, with one row a step."""
    noise_per_coordinate: float
    """The same with the rows that the steps had."""
    squared_noise: Float[np.ndarray, " steps"]
    """‖Cᵀ noise‖² of single steps."""
    n_row_evals: int
    failed: bool
    """Whether a chain did not get to the end."""

    @classmethod
    def at(cls, positions: Float[np.ndarray, "chains draws d"], noise_of_one_draw: float) -> Pilot:
        """What is taken for granted before the first run."""
        nothing = np.zeros(positions.shape[2])
        return cls(Bias(nothing, nothing, nothing, nothing), positions, nothing, noise_of_one_draw, 0.0, nothing, 0, False)


def run_pairs(kernel: Kernel, start: Float[Array, "chains d"], *, steps: int, burn_in: int, seed: int) -> Pilot:
    """Pairs of `kernel` at its step size and half of it, from `start`; `steps` coarse steps after `burn_in`."""
    run = Run(PairKernel.of(kernel), seed, jnp.concatenate([start, start], axis=1), 2 * burn_in, 2, steps)
    run.run_to(steps)
    coarse, fine = np.split(run.positions().astype(np.float64), 2, axis=2)
    centre, sd = fine.mean(axis=(0, 1)), fine.std(axis=(0, 1))
    x, y = (coarse - centre) / sd, (fine - centre) / sd
    mean, mean_error = _mean_with_error(x - y)
    spread, spread_error = _mean_with_error((x**2 - y**2) / 2)
    measure = jax.tree.map(lambda leaf: np.asarray(leaf[:, 1], np.float64).sum(axis=0), run.state.chains.memory.selection)
    squared_noise = run.sample_stats()["grad_noise"].ravel().astype(np.float64)
    return Pilot(
        bias=Bias(2 * mean, 2 * mean_error, 2 * spread, 2 * spread_error),
        positions=fine,
        noise=measure.sum_by_parameter / measure.steps / sd**2,
        noise_of_one_draw=float(measure.sum_of_one_draw / measure.steps),
        noise_per_coordinate=float(np.mean(squared_noise) / len(sd)),
        squared_noise=squared_noise,
        n_row_evals=run.rows_touched(),
        failed=any(outcome is not Outcome.OK for outcome in run.outcomes()),
    )


def _mean_with_error(values: Float[np.ndarray, "chains draws d"]) -> tuple[np.ndarray, np.ndarray]:
    """The mean, and its standard error by batch means."""
    chains, draws, d = values.shape
    length = draws // _BATCHES_PER_CHAIN
    batches = values[:, : length * _BATCHES_PER_CHAIN].reshape(chains * _BATCHES_PER_CHAIN, length, d).mean(axis=1)
    return batches.mean(axis=0), batches.std(axis=0, ddof=1) / np.sqrt(len(batches))
