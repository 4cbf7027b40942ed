"""Half the step size for twice as many steps."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from .base import AbstractSchedule
from .constant import Constant


class Halved(AbstractSchedule):
    """Steps 2t and 2t + 1 have half the size of step t of another schedule.

    **Arguments:**

    - `whole`: the other schedule.

    >>> import jax.numpy as jnp
    >>> from tallmc.schedule import Polynomial
    >>> whole = Polynomial(a=1.0, b=1.0, gamma=1.0)
    >>> whole(jnp.arange(2)).tolist(), Halved(whole)(jnp.arange(4)).tolist()
    ([1.0, 0.5], [0.5, 0.5, 0.25, 0.25])
    """

    whole: AbstractSchedule

    def __call__(self, step: Int[Array, "*k"]) -> Float[Array, "*k"]:
        return self.whole(step // 2) / 2

    def sampled(self, steps: Any) -> Any:
        before, after = self.whole.sampled(steps // 2), self.whole.sampled(steps // 2 + 1)
        return 2 * before + steps % 2 * (after - before)

    def steps_until(self, sampled: Any) -> Any:
        return 2 * self.whole.steps_until((sampled + 1) // 2) - sampled % 2


def halved(schedule: AbstractSchedule) -> AbstractSchedule:
    """Half the step size for twice as many steps. A constant step size stays a `Constant`.

    **Arguments:**

    - `schedule`: the schedule.

    **Returns:** the schedule of the smaller steps.

    >>> import jax.numpy as jnp
    >>> float(halved(Constant(0.5))(jnp.int32(3)))
    0.25
    """
    if isinstance(schedule, Constant):
        half = np.asarray(schedule.step_size) / 2
        return eqx.tree_at(lambda constant: constant.step_size, schedule, jax.device_put(half))
    return Halved(schedule)
