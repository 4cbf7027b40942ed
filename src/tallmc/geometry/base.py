"""Geometry: coordinates u with θ = C u, chosen so that the posterior is nearly isotropic in u.

The dynamics receive the gradient Cᵀ∇f and move by C times their step. CCᵀ is the preconditioner of
Langevin dynamics and the inverse mass matrix of dynamics with momentum. The geometry changes the
speed and the discretisation error, never the target.
"""

from __future__ import annotations

import abc

from ..anchor.anchor import Anchor, AnchorLevel
from ..core.linear_maps import AbstractLinearMap
from ..models.posterior import AbstractPosterior


class GeometryChoice(abc.ABC):
    """A geometry as chosen by the user; `prepare` computes C for a posterior.

    >>> from tallmc.geometry import Identity
    >>> isinstance(Identity(), GeometryChoice)
    True
    """

    @property
    @abc.abstractmethod
    def needs(self) -> AnchorLevel:
        """What must be known about the posterior before the first step."""

    @abc.abstractmethod
    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> AbstractLinearMap:
        """C for this posterior."""
