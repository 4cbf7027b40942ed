"""A constant step size."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..core.errors import check_number
from .base import AbstractSchedule, AbstractSteadySchedule


class Constant(AbstractSteadySchedule):
    """A constant step size, ε_t = ε.

    **Arguments:**

    - `step_size`: ε, a positive number.

    **Raises:** `InvalidInput` if the step size is not positive and finite.

    >>> import jax.numpy as jnp
    >>> Constant(0.5)(jnp.arange(2)).tolist()
    [0.5, 0.5]
    """

    step_size: float = eqx.field(
        converter=lambda value: check_number("step_size", value, 0, low_open=True)
    )

    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return jnp.broadcast_to(jnp.asarray(self.step_size), jnp.shape(step))


def as_schedule(step_size: float | AbstractSchedule) -> AbstractSchedule:
    """A number as a `Constant`; a schedule unchanged.

    **Arguments:**

    - `step_size`: a positive number, or a schedule.

    **Returns:** a schedule.

    **Raises:** `InvalidInput` if a number is not positive and finite.

    >>> as_schedule(0.5)
    Constant(step_size=0.5)
    """
    return step_size if isinstance(step_size, AbstractSchedule) else Constant(step_size)
