"""Named methods with microcanonical dynamics."""

from __future__ import annotations

from ..dynamics import Microcanonical
from ..geometry import Identity, NoiseDiagonal
from .method import Method, Size, StepSize


def sgmclmc(step_size: StepSize, size: Size, friction: float, precondition: bool = True) -> Method:
    """Stochastic-gradient microcanonical Langevin dynamics; with many chains, SMILE.

    **Arguments:**

    - `step_size`: the step size ε; a step has the length (ε/2)√d in its coordinates.
    - `size`: rows per step, a number or a size choice.
    - `friction`: γ, the rate at which the direction of the momentum is forgotten.
    - `precondition`: whether the coordinates make the gradient noise at the mode equally large for
      all parameters.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sgmclmc(step_size=0.1, size=2, friction=1.0).geometry
    NoiseDiagonal()
    """
    geometry = NoiseDiagonal() if precondition else Identity()
    return Method(
        dynamics=Microcanonical(friction), size=size, step_size=step_size, geometry=geometry
    )
