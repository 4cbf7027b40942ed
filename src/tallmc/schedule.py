"""Step sizes ε_t as a function of the step number t = 0, 1, 2, …"""

from __future__ import annotations

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._errors import check_number


class AbstractSchedule(eqx.Module):
    @abc.abstractmethod
    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        """ε_t."""


class Constant(AbstractSchedule):
    """ε_t = ε."""

    step_size: float = eqx.field(converter=lambda value: check_number("step_size", value, 0, low_open=True))

    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return jnp.broadcast_to(jnp.asarray(self.step_size), jnp.shape(step))


class Polynomial(AbstractSchedule):
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


def as_schedule(step_size: float | AbstractSchedule) -> AbstractSchedule:
    return step_size if isinstance(step_size, AbstractSchedule) else Constant(step_size)
