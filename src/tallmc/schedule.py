"""Step sizes ε_t as a function of the step number t = 0, 1, 2, …

A method takes a number, one of the schedules here, or any function of the step number that uses
`jax.numpy`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ._core.arrays import on_device
from ._core.errors import InvalidInput, check_int, check_number
from ._core.part import Part

__all__ = [
    "AbstractSchedule",
    "Constant",
    "Cyclical",
    "Halved",
    "OfStep",
    "Polynomial",
    "as_schedule",
    "halved",
    "in_precision",
]


class AbstractSchedule(Part, eqx.Module):
    """Step sizes as a function of the step number. By default every step gives a draw."""

    @abc.abstractmethod
    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        """ε_t."""

    def sampled(self, steps: Any) -> Any:
        """How many of the first `steps` steps give draws. Works on the host and on the device."""
        return steps

    def steps_until(self, sampled: Any) -> Any:
        """The smallest number of steps that gives `sampled` draws. Works on the host."""
        return sampled


def as_schedule(step_size: float | AbstractSchedule | Callable[..., Any]) -> AbstractSchedule:
    """A number or a function of the step number as a schedule; a schedule unchanged."""
    if isinstance(step_size, AbstractSchedule):
        return step_size
    return OfStep(step_size) if callable(step_size) else Constant(step_size)


def in_precision(schedule: AbstractSchedule, dtype: Any) -> AbstractSchedule:
    """Move the numbers of a schedule to the device; changing them then does not recompile."""
    return jax.tree.map(lambda value: on_device(value, dtype), schedule)


def _positive(name: str) -> Callable[[Any], float]:
    return lambda value: check_number(name, value, 0, low_open=True)


class Constant(AbstractSchedule):
    """A constant step size, ε_t = ε.

    **Arguments:**

    - `step_size`: ε, a positive number.
    """

    step_size: float = eqx.field(converter=_positive("step_size"))

    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return jnp.broadcast_to(jnp.asarray(self.step_size), jnp.shape(step))


class OfStep(AbstractSchedule):
    """The step sizes that a function returns.

    **Arguments:**

    - `function`: a function from the step number to a positive number, in `jax.numpy`.
    """

    function: Callable[..., Any] = eqx.field(static=True)

    def __check_init__(self) -> None:
        first = np.asarray(self.function(jnp.int32(0)))
        if first.shape != () or not np.isfinite(first) or not first > 0:
            raise InvalidInput("step_size", "return a positive number for every step", first)

    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return jnp.broadcast_to(jnp.asarray(self.function(step), float), jnp.shape(step))


class Polynomial(AbstractSchedule):
    """A decreasing step size, ε_t = a (b + t)^−γ (Welling and Teh, 2011).

    Averages over draws are weighted by the step size: `Draws.weights`, which `Draws.summary` uses.

    **Arguments:**

    - `a`: a positive number.
    - `b`: a positive number.
    - `gamma`: γ, between 0 and 1.
    """

    a: float = eqx.field(converter=_positive("a"))
    b: float = eqx.field(converter=_positive("b"))
    gamma: float = eqx.field(converter=lambda value: check_number("gamma", value, 0, 1))

    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return self.a * (self.b + step) ** (-jnp.asarray(self.gamma))


class Cyclical(AbstractSchedule):
    """A cyclical step size, ε_t = (ε₀/2) (1 + cos(π s/c)), s = t mod c (Zhang et al., 2020).

    The large steps of a cycle find other modes; draws from them would be too wide. Only the small
    steps at the end of each cycle give draws. The step size is smallest, but not zero, in the last
    step of a cycle. All draws count the same, as in the theory of the paper.

    **Arguments:**

    - `step_size`: ε₀, a positive number.
    - `cycle`: c, the number of steps per cycle.
    - `sampling`: the share of each cycle that gives draws.
    """

    paper = "Zhang, Li, Zhang, Chen and Wilson (2020)"

    step_size: float = eqx.field(converter=_positive("step_size"))
    cycle: int = eqx.field(static=True)
    sampling: float = eqx.field(static=True, default=0.25)

    def __check_init__(self) -> None:
        check_int("cycle", self.cycle, 2)
        check_number("sampling", self.sampling, 0, 1, low_open=True)
        if self.kept == 0:
            rule = f"leave at least one step of a cycle of {self.cycle}"
            raise InvalidInput("sampling", rule, self.sampling)

    @property
    def kept(self) -> int:
        """How many steps per cycle give draws."""
        return round(self.cycle * self.sampling)

    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        wave = 1 + jnp.cos(jnp.pi * (step % self.cycle) / self.cycle)
        return jnp.asarray(self.step_size) / 2 * wave

    def sampled(self, steps: Any) -> Any:
        whole, rest = steps // self.cycle, steps % self.cycle
        beyond = rest - (self.cycle - self.kept)
        return whole * self.kept + beyond * (beyond > 0)

    def steps_until(self, sampled: Any) -> Any:
        whole, rest = np.divmod(sampled, self.kept)
        return whole * self.cycle + np.where(rest > 0, self.cycle - self.kept + rest, 0)


class Halved(AbstractSchedule):
    """Steps 2t and 2t + 1 have half the size of step t of another schedule."""

    whole: AbstractSchedule

    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return self.whole(step // 2) / 2

    def sampled(self, steps: Any) -> Any:
        before, after = self.whole.sampled(steps // 2), self.whole.sampled(steps // 2 + 1)
        return 2 * before + steps % 2 * (after - before)

    def steps_until(self, sampled: Any) -> Any:
        return 2 * self.whole.steps_until((sampled + 1) // 2) - sampled % 2


def halved(schedule: AbstractSchedule) -> AbstractSchedule:
    """Half the step size for twice as many steps. A constant step size stays a `Constant`."""
    if isinstance(schedule, Constant):
        half = np.asarray(schedule.step_size) / 2
        return eqx.tree_at(lambda constant: constant.step_size, schedule, jax.device_put(half))
    return Halved(schedule)
