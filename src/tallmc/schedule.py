"""Step sizes ε_t as a function of the step number t = 0, 1, 2, …"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ._errors import InvalidInput, check_int, check_number


class AbstractSchedule(eqx.Module):
    @abc.abstractmethod
    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        """ε_t."""

    @abc.abstractmethod
    def sampled(self, steps: Any) -> Any:
        """How many of the first `steps` steps give draws worth keeping. On the host and on the device."""

    @abc.abstractmethod
    def steps_until(self, sampled: Any) -> Any:
        """The fewest steps of which so many give draws. On the host."""


class AbstractSteadySchedule(AbstractSchedule):
    """Every step gives a draw."""

    def sampled(self, steps: Any) -> Any:
        return steps

    def steps_until(self, sampled: Any) -> Any:
        return sampled


class Constant(AbstractSteadySchedule):
    """ε_t = ε."""

    step_size: float = eqx.field(converter=lambda value: check_number("step_size", value, 0, low_open=True))

    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return jnp.broadcast_to(jnp.asarray(self.step_size), jnp.shape(step))


class Polynomial(AbstractSteadySchedule):
    """ε_t = a (b + t)^−γ (Welling and Teh, 2011). Averages over draws should then be weighted by the step size.

    >>> import jax.numpy as jnp
    >>> Polynomial(a=1e-3, b=10.0, gamma=0.5)(jnp.arange(2)).round(7)
    Array([0.0003162, 0.0003015], dtype=float32)
    """

    a: float = eqx.field(converter=lambda value: check_number("a", value, 0, low_open=True))
    b: float = eqx.field(converter=lambda value: check_number("b", value, 0, low_open=True))
    gamma: float = eqx.field(converter=lambda value: check_number("gamma", value, 0, 1))

    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return self.a * (self.b + step) ** (-jnp.asarray(self.gamma))


class Cyclical(AbstractSchedule):
    """ε_t = (ε₀/2) (1 + cos(π s/c)), s = t mod c: large steps to explore, then small ones to sample (Zhang et al., 2020).

    Only the last `sampling` share of each cycle of `cycle` steps gives draws: the large steps before it find other modes, and the
    draws among them would be too wide. The step is smallest, but not zero, in the last step of a cycle.

    >>> import jax.numpy as jnp
    >>> cycle = Cyclical(step_size=0.1, cycle=4, sampling=0.5)
    >>> [round(float(step), 4) for step in cycle(jnp.arange(5))]
    [0.1, 0.0854, 0.05, 0.0146, 0.1]
    >>> [cycle.sampled(steps) for steps in range(9)]
    [0, 0, 0, 1, 2, 2, 2, 3, 4]
    """

    step_size: float = eqx.field(converter=lambda value: check_number("step_size", value, 0, low_open=True))
    cycle: int = eqx.field(static=True)
    sampling: float = eqx.field(static=True, default=0.25)

    def __check_init__(self) -> None:
        check_int("cycle", self.cycle, 2)
        check_number("sampling", self.sampling, 0, 1, low_open=True)
        if self.kept == 0:
            raise InvalidInput("sampling", f"leave at least one step of a cycle of {self.cycle}", self.sampling)

    @property
    def kept(self) -> int:
        """Steps of a cycle that give draws."""
        return round(self.cycle * self.sampling)

    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return jnp.asarray(self.step_size) / 2 * (1 + jnp.cos(jnp.pi * (step % self.cycle) / self.cycle))

    def sampled(self, steps: Any) -> Any:
        whole, rest = steps // self.cycle, steps % self.cycle
        beyond = rest - (self.cycle - self.kept)
        return whole * self.kept + beyond * (beyond > 0)

    def steps_until(self, sampled: Any) -> Any:
        whole, rest = np.divmod(sampled, self.kept)
        return whole * self.cycle + np.where(rest > 0, self.cycle - self.kept + rest, 0)


def as_schedule(step_size: float | AbstractSchedule) -> AbstractSchedule:
    return step_size if isinstance(step_size, AbstractSchedule) else Constant(step_size)


def in_precision(schedule: AbstractSchedule, dtype: Any) -> AbstractSchedule:
    """The same schedule with its numbers on the device, so that others of its kind need no other compilation."""
    return jax.tree.map(lambda value: jnp.asarray(value, dtype), schedule)
