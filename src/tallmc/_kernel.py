"""One chain's transition, everything prepared: rows, gradient, dynamics and step size put together.

The randomness of many steps is drawn in one call (`supply`), then consumed a step at a time (`step`). Its parts hold the data
and the tables as leaves of one pytree, so they reach `jit` as arguments, never as constants.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ._rows import take_rows
from .dynamics.base import AbstractDynamics
from .gradient.base import AbstractGradient, Batch
from .schedule import AbstractSchedule
from .subsample.selection import AbstractSelection, Estimate, Picks


class Supply(eqx.Module):
    """Everything random that a number of steps need."""

    rows: PyTree[Array]
    """Picks or, once their rows are gathered, a Batch; for a dynamic selection whatever it draws from."""
    noise: PyTree[Array]


class Kernel(eqx.Module):
    gradient: AbstractGradient
    selection: AbstractSelection
    dynamics: AbstractDynamics
    schedule: AbstractSchedule
    rest: Float[Array, " d"]
    """Where a chain that has failed is put: a step there is cheap."""

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"]) -> Any:
        """The state of a chain that starts at `position`."""
        supply = self.gather(jax.tree.map(lambda leaf: leaf[0], self.supply(key, 1)))
        return self.dynamics.init(position, lambda at: self.estimate(at, supply.rows))

    def supply(self, key: PRNGKeyArray, steps: int) -> Supply:
        rows_key, noise_key = jax.random.split(key)
        noise = self.dynamics.noise(noise_key, steps, self.gradient.posterior.init)
        return Supply(self.selection.supply(rows_key, steps), noise)

    def gather(self, supply: Supply) -> Supply:
        """The same supply with its rows in place of their numbers, where these are known ahead."""
        if not isinstance(supply.rows, Picks):
            return supply
        rows = take_rows(self.gradient.posterior.data, supply.rows.indices)
        return Supply(Batch(rows, supply.rows.weights), supply.noise)

    def estimate(self, position: Float[Array, " d"], rows: PyTree[Array]) -> Estimate:
        """The gradient estimate at a position from one step's rows."""
        return self.selection.estimate(self.gradient, position, rows)

    def step(self, state: Any, supply: Supply, step: Int[Array, ""]) -> tuple[Any, dict[str, Array]]:
        """The next state, and statistics worth keeping."""
        supply = self.gather(supply)
        step_size = self.schedule(step).astype(state.position.dtype)
        state, estimate, stats = self.dynamics.step(state, lambda at: self.estimate(at, supply.rows), step_size, supply.noise)
        return state, stats if self.selection.rows_per_step is not None else {"batch_size": estimate.n_rows, **stats}
