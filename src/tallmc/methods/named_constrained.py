"""Named methods for constrained parameters: boxes, half-spaces and simplices."""

from __future__ import annotations

from ..dynamics import Mirrored, Projected, Reflected
from ..dynamics.domains import Within
from ..dynamics.mirrored import MirrorMaps
from .method import Method, Size, StepSize


def projected_sgld(step_size: StepSize, size: Size, within: Within | None = None) -> Method:
    """SGLD whose steps are projected onto boxes or half-spaces.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `within`: domains by the name of a parameter, or one for the whole position:
      `dynamics.Box(low, high)`, a pair (low, high), or `dynamics.HalfSpace(normal, offset)`. None
      constrains nothing.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.projected_sgld(step_size=0.1, size=2, within={"rate": (0.0, 1.0)}).dynamics
    Projected(within={'rate': Box(low=0.0, high=1.0)})
    """
    chosen = Projected({} if within is None else within)
    return Method(dynamics=chosen, size=size, step_size=step_size)


def reflected_sgld(step_size: StepSize, size: Size, within: Within | None = None) -> Method:
    """SGLD whose steps are reflected at the boundaries of boxes or half-spaces.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `within`: domains by the name of a parameter, or one for the whole position:
      `dynamics.Box(low, high)`, a pair (low, high), or `dynamics.HalfSpace(normal, offset)`. None
      constrains nothing.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.reflected_sgld(step_size=0.1, size=2, within=(0.0, 1.0)).dynamics
    Reflected(within=Box(low=0.0, high=1.0))
    """
    chosen = Reflected({} if within is None else within)
    return Method(dynamics=chosen, size=size, step_size=step_size)


def mirrored_sgld(step_size: StepSize, size: Size, mirrors: MirrorMaps | None = None) -> Method:
    """SGLD of the mirror image of parameters on simplices or in boxes.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `mirrors`: mirror maps by the name of a parameter, or one for the whole position:
      `dynamics.Entropic()`, `dynamics.LogBarrier(low, high)`, or a pair (low, high) for the latter.
      None constrains nothing.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> entropic = tallmc.dynamics.Entropic()
    >>> tallmc.mirrored_sgld(step_size=0.1, size=2, mirrors={"weights": entropic}).dynamics
    Mirrored(mirrors={'weights': Entropic()})
    """
    chosen = Mirrored({} if mirrors is None else mirrors)
    return Method(dynamics=chosen, size=size, step_size=step_size)
