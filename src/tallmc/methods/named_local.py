"""Named methods for models with parameters of groups."""

from __future__ import annotations

from jaxtyping import ArrayLike

from .local import LocalSGLD
from .method import StepSize


def local_sgld(
    step_size: StepSize,
    size: int,
    *,
    preconditioned: bool = False,
    weights: ArrayLike | None = None,
) -> LocalSGLD:
    """SGLD of a `LocalPosterior`: a step moves the shared parameters and the groups of its rows.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step.
    - `preconditioned`: whether step sizes are relative to the inverse curvature of each parameter
      at the start. This helps if groups have different numbers of rows.
    - `weights`: positive weights of the rows, to which their probabilities are proportional.

    **Returns:** a `LocalSGLD`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.local_sgld(step_size=0.01, size=32).size
    32
    """
    return LocalSGLD(step_size=step_size, size=size, preconditioned=preconditioned, weights=weights)
