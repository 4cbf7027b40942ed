"""A step size that decreases as a power of the step number."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..core.errors import check_number
from .base import AbstractSteadySchedule


class Polynomial(AbstractSteadySchedule):
    """A decreasing step size, ε_t = a (b + t)^−γ (Welling and Teh, 2011).

    Averages over draws are weighted by the step size: `Draws.weights`, which `Draws.summary` uses.

    **Arguments:**

    - `a`: a positive number.
    - `b`: a positive number.
    - `gamma`: γ, between 0 and 1.

    **Raises:** `InvalidInput` if an argument is out of range.

    >>> import jax.numpy as jnp
    >>> Polynomial(a=1e-3, b=10.0, gamma=0.5)(jnp.arange(2)).round(7)
    Array([0.0003162, 0.0003015], dtype=float32)
    """

    a: float = eqx.field(converter=lambda value: check_number("a", value, 0, low_open=True))
    b: float = eqx.field(converter=lambda value: check_number("b", value, 0, low_open=True))
    gamma: float = eqx.field(converter=lambda value: check_number("gamma", value, 0, 1))

    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return self.a * (self.b + step) ** (-jnp.asarray(self.gamma))
