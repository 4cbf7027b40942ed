"""Adam on uniform minibatches, from optax."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxtyping import Array, Float

from .minibatches import AbstractMinibatchSearch


@dataclasses.dataclass(frozen=True)
class Adam(AbstractMinibatchSearch):
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

    @staticmethod
    def rule(step_size: Float[Array, ""]) -> Any:
        import optax

        return optax.adam(step_size)
