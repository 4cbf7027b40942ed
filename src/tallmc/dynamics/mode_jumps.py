"""Hamiltonian Monte Carlo that jumps between the modes of a posterior.

Half of the trajectories of `hmc.py` are replaced by proposals from a mixture of t distributions
around known modes (`mixture.py`). Exact, whatever the mixture; the mixture decides how often a
chain changes its mode. A mode that is not in the mixture is not proposed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..anchor.anchor import AnchorLevel
from ..core.arrays import check_numeric
from ..core.errors import InvalidInput, check_int
from .base import Curvature, DynamicsChoice, DynamicsContext, Suggestion
from .hmc import HMCDynamics, suggestion
from .mixture import Mixture


@dataclasses.dataclass(frozen=True, eq=False)
class ModeJumpingHMC(DynamicsChoice):
    """Hamiltonian Monte Carlo with jumps between known modes; requires `AllRows()`.

    **Arguments:**

    - `length`: the mean number of leapfrog steps of a trajectory.
    - `modes`: the modes, one per row (k, d).
    - `covariances`: the covariance of the posterior near each mode (k, d, d).
    - `weights`: the share of jumps to each mode (k,), positive; close to the mode's probability.

    **Raises:** `InvalidInput` if `length` is not a positive int, the shapes do not match, a
    covariance is not positive definite, or a weight is not positive.

    >>> import tallmc
    >>> tallmc.dynamics.ModeJumpingHMC(3, [[-1.0], [1.0]], [[[0.1]], [[0.1]]], [0.4, 0.6]).length
    3
    """

    length: int
    modes: Any
    covariances: Any
    weights: Any
    needs = AnchorLevel.NOTHING
    exact_only = True
    takes_geometry = True
    corrects_through = ()
    has_transition = False

    def __post_init__(self) -> None:
        check_int("length", self.length, 1)
        modes, covariances, weights = self._arrays()
        if modes.ndim != 2:
            raise InvalidInput("modes", "have shape (k, d)", f"shape {modes.shape}")
        k, d = modes.shape
        if covariances.shape != (k, d, d):
            shape = f"shape {covariances.shape}"
            raise InvalidInput("covariances", f"have shape ({k}, {d}, {d}) with these modes", shape)
        if not (np.linalg.eigvalsh(covariances)[:, 0] > 0).all():
            raise InvalidInput("covariances", "be positive definite", self.covariances)
        if weights.shape != (k,) or not (weights > 0).all():
            raise InvalidInput("weights", f"be {k} positive numbers with these modes", weights)

    def suggest(self, curvature: Curvature) -> Suggestion:
        return suggestion(curvature)

    def prepare(self, context: DynamicsContext) -> HMCDynamics:
        modes, covariances, weights = self._arrays()
        if modes.shape[1] != context.posterior.dim:
            rule = f"have shape (k, {context.posterior.dim}) for this posterior"
            raise InvalidInput("modes", rule, f"shape {modes.shape}")
        parts = (modes, np.linalg.cholesky(covariances), np.log(weights / weights.sum()))
        dtype = context.posterior.dtype
        mixture = Mixture(*(jnp.asarray(part, dtype) for part in parts))
        return HMCDynamics(context.geometry, jnp.asarray(self.length, dtype), mixture)

    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        modes, covariances, weights = (
            np.asarray(check_numeric(name, getattr(self, name)), np.float64)
            for name in ("modes", "covariances", "weights")
        )
        return modes, covariances, weights
