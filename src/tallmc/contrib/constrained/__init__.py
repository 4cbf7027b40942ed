"""Langevin dynamics whose positions stay in boxes, half-spaces or simplices."""

from .boxes import Projected, Reflected, projected_sgld, reflected_sgld
from .domains import Box, Domain, HalfSpace
from .mirrored import Entropic, LogBarrier, Mirrored, MirrorMap, mirrored_sgld

__all__ = [
    "Box",
    "Domain",
    "Entropic",
    "HalfSpace",
    "LogBarrier",
    "MirrorMap",
    "Mirrored",
    "Projected",
    "Reflected",
    "mirrored_sgld",
    "projected_sgld",
    "reflected_sgld",
]
