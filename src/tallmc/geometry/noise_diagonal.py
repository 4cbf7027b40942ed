"""Coordinates in which the gradient noise is as large in every direction, C = diag(1/√V_jj).

    V_jj = Σ_i (g_ij − ḡ_j)²,   g_i = ∇f_i(θ̂)

N V/n is the covariance of the simple estimate from n uniform draws at the mode θ̂. In these
coordinates its diagonal is constant; correlations between parameters remain. The noise
preconditioning of Sommer et al. (2026) estimates the same diagonal from the gradients of the run.
Here one pass over the rows at the mode gives it, and C is fixed, so that it changes no target.
If the model is right, V is near the Hessian, and the coordinates are near those of `Diagonal`.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..anchor.anchor import Anchor, AnchorLevel
from ..core.linear_maps import DiagonalMap
from ..models.base import AbstractModel
from ..models.posterior import AbstractPosterior
from ..rows.base import RowBlock
from .base import GeometryChoice


@dataclasses.dataclass(frozen=True)
class NoiseDiagonal(GeometryChoice):
    """One scale per parameter, the inverse sd of the row gradients at the mode.

    >>> NoiseDiagonal().needs.name
    'MODE'
    """

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.MODE

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> DiagonalMap:
        assert anchor is not None, "NoiseDiagonal() needs an anchor"
        total = posterior.rows.reduce(
            _moments, posterior.model, anchor.position, width=posterior.width
        )
        squares, sums = total.float64()
        variance = squares - sums**2 / posterior.n_rows
        # A parameter on which no row depends has no noise; it keeps the scale of the others.
        noisy = variance > np.finfo(np.float32).eps * squares.max()
        typical = np.exp(np.mean(np.log(variance[noisy]))) if noisy.any() else 1.0
        scale = 1 / np.sqrt(np.where(noisy, variance, typical))
        return DiagonalMap(jnp.asarray(scale, posterior.dtype))


def _moments(
    rows: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Σ g_ij² and Σ g_ij over the counted rows."""
    gradients = model.expand(model.row_gradients(position, rows), rows)
    gradients = jnp.where(counted[:, None], gradients, 0)
    return jnp.sum(gradients**2, axis=0), jnp.sum(gradients, axis=0)
