"""A dense preconditioner or inverse mass matrix, C Cᵀ = Σ."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..anchor.anchor import Anchor, AnchorLevel
from ..core.arrays import check_numeric
from ..core.errors import InvalidInput
from ..core.linear_maps import DenseMap
from ..models.posterior import AbstractPosterior
from .base import GeometryChoice


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(GeometryChoice):
    """A dense matrix CCᵀ. By default, lengths are in units of posterior standard deviations.

    **Arguments:**

    - `covariance`: CCᵀ, a symmetric positive definite matrix; by default Σ̂ at the mode.

    >>> Dense().needs.name, Dense([[1.0, 0.5], [0.5, 2.0]]).needs.name
    ('HESSIAN', 'NOTHING')
    """

    covariance: Any = None

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.HESSIAN if self.covariance is None else AnchorLevel.NOTHING

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> DenseMap:
        if self.covariance is None:
            assert anchor is not None and anchor.factor is not None, (
                "Dense() needs an anchor with a Hessian"
            )
            return DenseMap(anchor.factor)
        matrix, d = (
            np.asarray(check_numeric("covariance", self.covariance), np.float64),
            posterior.dim,
        )
        well_formed = (
            matrix.shape == (d, d)
            and np.isfinite(matrix).all()
            and np.allclose(matrix, matrix.T, rtol=1e-6)
        )
        if not well_formed or np.linalg.eigvalsh(matrix)[0] <= 0:
            raise InvalidInput(
                "covariance", f"be a symmetric positive definite {d}×{d} matrix", self.covariance
            )
        return DenseMap(jnp.asarray(np.linalg.cholesky(matrix), posterior.dtype))
