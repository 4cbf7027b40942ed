"""Adam on uniform minibatches, from optax."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ...core.errors import check_int, check_number
from ...models.posterior import AbstractPosterior, check_in_memory
from ...rows.batch import Batch
from ..passes import CountedPasses
from .base import AbstractOptimiser


@dataclasses.dataclass(frozen=True)
class Adam(AbstractOptimiser):
    """Adam on uniform minibatches (putcha-2023 and its code).

    The last iterate is taken as the mode, converged or not.

    **Arguments:**

    - `step_size`: the learning rate.
    - `steps`: how many steps to make.
    - `size`: rows per step.
    - `seed`: the seed of the minibatches.

    **Raises:** `InvalidInput` if an argument is out of range.

    >>> Adam(steps=2_000).size
    32
    """

    step_size: float = 1e-3
    steps: int = 10_000
    size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, 0, low_open=True)
        check_int("steps", self.steps, 1)
        check_int("size", self.size, 1)
        check_int("seed", self.seed, 0, 2**32 - 1)

    def find(self, passes: CountedPasses) -> Float[Array, " d"]:
        return self.search(passes, passes.posterior.init)

    def search(self, passes: CountedPasses, start: Float[Array, " d"]) -> Float[Array, " d"]:
        """The last iterate of a search from `start`."""
        posterior = passes.posterior
        check_in_memory(posterior, "Adam reads rows by number", "Use Newton() or LBFGS().")
        passes.n_row_evals += self.steps * self.size
        step_size = jnp.asarray(self.step_size, posterior.dtype)
        return _adam(posterior, start, step_size, self.steps, self.size, jax.random.key(self.seed))


@eqx.filter_jit
def _adam(
    posterior: AbstractPosterior,
    start: Float[Array, " d"],
    step_size: Array,
    steps: int,
    size: int,
    key: Array,
) -> Float[Array, " d"]:
    import optax

    solver = optax.adam(step_size)

    def advance(carry: Any, key: Array) -> Any:
        position, state = carry
        rows = posterior.rows.take(jax.random.randint(key, (size,), 0, posterior.n_rows))
        weights = jnp.full(size, posterior.n_rows / size, posterior.dtype)
        gradient = posterior.model.sum_remainders(0, position, position, Batch(rows, weights))
        updates, state = solver.update(gradient + posterior.model.prior_gradient(position), state)
        return (optax.apply_updates(position, updates), state), None

    first = (start, solver.init(start))
    (position, _), _ = lax.scan(advance, first, jax.random.split(key, steps))
    return position
