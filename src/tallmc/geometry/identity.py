"""No change of coordinates, C = I."""

from __future__ import annotations

import dataclasses

from ..anchor.anchor import Anchor, AnchorLevel
from ..core.linear_maps import IdentityMap
from ..models.posterior import AbstractPosterior
from .base import GeometryChoice


@dataclasses.dataclass(frozen=True)
class Identity(GeometryChoice):
    """The parameters without a change of coordinates.

    >>> Identity().needs.name
    'NOTHING'
    """

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.NOTHING

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> IdentityMap:
        return IdentityMap()
