"""Step sizes ε_t as a function of the step number t = 0, 1, 2, …"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int

from ..core.arrays import on_device


class AbstractSchedule(eqx.Module):
    """Step sizes as a function of the step number.

    >>> from tallmc.schedule import Constant
    >>> isinstance(Constant(0.1), AbstractSchedule)
    True
    """

    @abc.abstractmethod
    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        """ε_t."""

    @abc.abstractmethod
    def sampled(self, steps: Any) -> Any:
        """How many of the first `steps` steps give draws. Works on the host and on the device."""

    @abc.abstractmethod
    def steps_until(self, sampled: Any) -> Any:
        """The smallest number of steps that gives `sampled` draws. Works on the host."""


class AbstractSteadySchedule(AbstractSchedule):
    """A schedule in which every step gives a draw.

    >>> from tallmc.schedule import Constant
    >>> Constant(0.1).sampled(steps=7)
    7
    """

    def sampled(self, steps: Any) -> Any:
        return steps

    def steps_until(self, sampled: Any) -> Any:
        return sampled


def in_precision(schedule: AbstractSchedule, dtype: Any) -> AbstractSchedule:
    """Move the numbers of a schedule to the device; changing them then does not recompile.

    **Arguments:**

    - `schedule`: the schedule.
    - `dtype`: the precision of its numbers.

    **Returns:** the same schedule with arrays in place of numbers.

    >>> import jax.numpy as jnp
    >>> from tallmc.schedule import Constant
    >>> in_precision(Constant(0.5), jnp.float32).step_size
    Array(0.5, dtype=float32)
    """
    return jax.tree.map(lambda value: on_device(value, dtype), schedule)
