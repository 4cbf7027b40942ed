"""Named methods for constrained parameters: boxes, half-spaces and simplices."""

from __future__ import annotations

from ...methods.method import Method, Size, StepSize
from ...methods.registry import named
from .boxes import Projected, Reflected
from .domains import Within
from .mirrored import Mirrored, MirrorMaps


@named("Bubeck, Eldan and Lehec (2018)", example={"batch_size": 2, "within": (-2.0, 2.0)})
def projected_sgld(step_size: StepSize, batch_size: Size, within: Within | None = None) -> Method:
    """SGLD whose steps are projected onto boxes or half-spaces.

    **Arguments:** those of `sgld`, and

    - `within`: domains by the name of a parameter, or one for the whole position:
      `Box(low, high)`, a pair (low, high), or `HalfSpace(normal, offset)`. None
      constrains nothing.
    """
    chosen = Projected({} if within is None else within)
    return Method(dynamics=chosen, batch_size=batch_size, step_size=step_size)


@named("Bossy, Gobet and Talay (2004)", example={"batch_size": 2, "within": (-2.0, 2.0)})
def reflected_sgld(step_size: StepSize, batch_size: Size, within: Within | None = None) -> Method:
    """SGLD whose steps are reflected at the boundaries of boxes or half-spaces.

    **Arguments:** those of `sgld`, and

    - `within`: as in `projected_sgld`.
    """
    chosen = Reflected({} if within is None else within)
    return Method(dynamics=chosen, batch_size=batch_size, step_size=step_size)


@named("Hsieh, Kavis, Rolland and Cevher (2018)", example={"batch_size": 2, "mirrors": (-2.0, 2.0)})
def mirrored_sgld(
    step_size: StepSize, batch_size: Size, mirrors: MirrorMaps | None = None
) -> Method:
    """SGLD of the mirror image of parameters on simplices or in boxes.

    **Arguments:** those of `sgld`, and

    - `mirrors`: mirror maps by the name of a parameter, or one for the whole position:
      `Entropic()`, `LogBarrier(low, high)`, or a pair (low, high) for the latter.
      None constrains nothing.
    """
    chosen = Mirrored({} if mirrors is None else mirrors)
    return Method(dynamics=chosen, batch_size=batch_size, step_size=step_size)
