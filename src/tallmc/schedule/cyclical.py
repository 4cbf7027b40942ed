"""A cyclical step size: large steps explore, small steps sample."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..core.errors import InvalidInput, check_int, check_number
from .base import AbstractSchedule


class Cyclical(AbstractSchedule):
    """A cyclical step size, ε_t = (ε₀/2) (1 + cos(π s/c)), s = t mod c (Zhang et al., 2020).

    The large steps of a cycle find other modes; draws from them would be too wide. Only the small
    steps at the end of each cycle give draws. The step size is smallest, but not zero, in the last
    step of a cycle. All draws count the same, as in the theory of the paper.

    **Arguments:**

    - `step_size`: ε₀, a positive number.
    - `cycle`: c, the number of steps per cycle.
    - `sampling`: the share of each cycle that gives draws.

    **Raises:** `InvalidInput` if an argument is out of range, or no step of a cycle gives a draw.

    >>> import jax.numpy as jnp
    >>> cycle = Cyclical(step_size=0.1, cycle=4, sampling=0.5)
    >>> [round(float(step), 4) for step in cycle(jnp.arange(5))]
    [0.1, 0.0854, 0.05, 0.0146, 0.1]
    >>> [cycle.sampled(steps) for steps in range(9)]
    [0, 0, 0, 1, 2, 2, 2, 3, 4]
    """

    step_size: float = eqx.field(
        converter=lambda value: check_number("step_size", value, 0, low_open=True)
    )
    cycle: int = eqx.field(static=True)
    sampling: float = eqx.field(static=True, default=0.25)

    def __check_init__(self) -> None:
        check_int("cycle", self.cycle, 2)
        check_number("sampling", self.sampling, 0, 1, low_open=True)
        if self.kept == 0:
            raise InvalidInput(
                "sampling", f"leave at least one step of a cycle of {self.cycle}", self.sampling
            )

    @property
    def kept(self) -> int:
        """How many steps per cycle give draws."""
        return round(self.cycle * self.sampling)

    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return (
            jnp.asarray(self.step_size)
            / 2
            * (1 + jnp.cos(jnp.pi * (step % self.cycle) / self.cycle))
        )

    def sampled(self, steps: Any) -> Any:
        whole, rest = steps // self.cycle, steps % self.cycle
        beyond = rest - (self.cycle - self.kept)
        return whole * self.kept + beyond * (beyond > 0)

    def steps_until(self, sampled: Any) -> Any:
        whole, rest = np.divmod(sampled, self.kept)
        return whole * self.cycle + np.where(rest > 0, self.cycle - self.kept + rest, 0)
