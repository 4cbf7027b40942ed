"""Named methods with exponential weights for further integrators (li-2021, footnote 2)."""

from __future__ import annotations

from ..dynamics import GeometricLangevin, Splitting
from ..subsample import ExponentiallyWeighted
from .method import Method, Size, StepSize


def ewsg_baoab(step_size: StepSize, size: Size, friction: float, length: int = 1) -> Method:
    """EWSG for underdamped Langevin dynamics by the BAOAB splitting.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: the friction γ.
    - `length`: Metropolis steps over batches per step.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.ewsg_baoab(step_size=0.1, size=2, friction=1.0).dynamics
    Splitting(friction=1.0)
    """
    subsample = ExponentiallyWeighted(length)
    return Method(dynamics=Splitting(friction), subsample=subsample, size=size, step_size=step_size)


def ewsg_gla(step_size: StepSize, size: Size, friction: float, length: int = 1) -> Method:
    """EWSG for the geometric Langevin algorithm, which the paper names beside Euler steps.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: the friction γ.
    - `length`: Metropolis steps over batches per step.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.ewsg_gla(step_size=0.1, size=2, friction=1.0).dynamics
    GeometricLangevin(friction=1.0)
    """
    subsample = ExponentiallyWeighted(length)
    dynamics = GeometricLangevin(friction)
    return Method(dynamics=dynamics, subsample=subsample, size=size, step_size=step_size)
