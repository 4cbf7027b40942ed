"""One scale per parameter, C = diag(scale)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..anchor.anchor import Anchor, AnchorLevel
from ..core.arrays import check_numeric
from ..core.errors import InvalidInput
from ..core.linear_maps import DiagonalMap
from ..models.posterior import AbstractPosterior
from .base import GeometryChoice


@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal(GeometryChoice):
    """One scale per parameter. Lengths are in units of that scale.

    **Arguments:**

    - `scale`: positive numbers, one per parameter; by default 1/√H_jj from the Hessian at the mode.

    >>> Diagonal().needs.name, Diagonal([1.0, 0.1]).needs.name
    ('HESSIAN', 'NOTHING')
    """

    scale: Any = None

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.HESSIAN if self.scale is None else AnchorLevel.NOTHING

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> DiagonalMap:
        if self.scale is None:
            assert (
                anchor is not None and anchor.hessian is not None and anchor.covariance is not None
            ), "Diagonal() needs an anchor with a Hessian"
            # An anchor that is not the mode may have negative curvature, but has a covariance.
            curvature, variance = jnp.diag(anchor.hessian), jnp.diag(anchor.covariance)
            from_hessian = 1 / jnp.sqrt(jnp.abs(curvature))
            return DiagonalMap(jnp.where(curvature > 0, from_hessian, jnp.sqrt(variance)))
        scale = np.asarray(check_numeric("scale", self.scale), np.float64)
        if scale.shape != (posterior.dim,) or not np.isfinite(scale).all() or not (scale > 0).all():
            raise InvalidInput(
                "scale", f"be positive and finite, one per parameter ({posterior.dim})", self.scale
            )
        return DiagonalMap(jnp.asarray(scale, posterior.dtype))
