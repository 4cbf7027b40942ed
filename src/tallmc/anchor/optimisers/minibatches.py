"""Searches for the mode on uniform minibatches, with the update rules of optax.

Each step draws n rows uniformly with replacement and passes the unbiased estimate
∇f₀(θ) + (N/n) Σ ∇f_i(θ) to the rule.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ...core.errors import PreparationError, check_int, check_number
from ...models.posterior import AbstractPosterior, check_in_memory
from ...rows.batch import Batch
from ..advice import not_finite
from ..passes import CountedPasses
from .base import AbstractOptimiser


class AbstractMinibatchSearch(AbstractOptimiser):
    """A search on uniform minibatches. The last iterate is taken as the mode.

    >>> from tallmc import Adam
    >>> isinstance(Adam(), AbstractMinibatchSearch)
    True
    """

    step_size: float
    steps: int
    size: int
    seed: int

    @staticmethod
    @abc.abstractmethod
    def rule(step_size: Float[Array, ""]) -> Any:
        """The update rule, an optax `GradientTransformation`."""

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, 0, low_open=True)
        check_int("steps", self.steps, 1)
        check_int("size", self.size, 1)
        check_int("seed", self.seed, 0, 2**32 - 1)

    def find(self, passes: CountedPasses) -> Float[Array, " d"]:
        start = passes.posterior.init
        end = self.search(passes, start)
        if np.isfinite(end).all():
            return end
        potential, gradient = passes.value_and_gradient(start)
        if not np.isfinite(potential) or not np.isfinite(gradient).all():
            raise not_finite(passes, start, "at init")
        raise PreparationError(
            f"{type(self).__name__} must end at a finite position; it diverged with step_size = "
            f"{self.step_size}. Use a smaller step_size, or Newton() or LBFGS()."
        )

    def search(self, passes: CountedPasses, start: Float[Array, " d"]) -> Float[Array, " d"]:
        """The last iterate of a search from `start`, finite or not."""
        posterior = passes.posterior
        reads = f"{type(self).__name__} reads rows by number"
        check_in_memory(posterior, reads, "Use Newton() or LBFGS().")
        passes.n_row_evals += self.steps * self.size
        step_size = jnp.asarray(self.step_size, posterior.dtype)
        key = jax.random.key(self.seed)
        return _descend(self.rule, posterior, start, step_size, self.steps, self.size, key)


@eqx.filter_jit
def _descend(
    rule: Callable[[Float[Array, ""]], Any],
    posterior: AbstractPosterior,
    start: Float[Array, " d"],
    step_size: Float[Array, ""],
    steps: int,
    size: int,
    key: Array,
) -> Float[Array, " d"]:
    import optax

    solver = rule(step_size)

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
