"""A first metric for the exact plan, where the anchor has no Gaussian."""

from __future__ import annotations

import numpy as np

from ...anchor.anchor import Anchor
from ...geometry import Dense
from ...models.posterior import AbstractPosterior

_LARGEST_CONDITION = 1e8


def absolute_hessian(posterior: AbstractPosterior, anchor: Anchor) -> Dense:
    """The metric |H|⁻¹ at the anchor: eigenvalues of the Hessian count by their size."""
    hessian = np.asarray(posterior.hessian(anchor.position), np.float64)
    values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
    values = np.maximum(np.abs(values), np.abs(values).max() / _LARGEST_CONDITION)
    covariance = (vectors / values) @ vectors.T
    return Dense((covariance + covariance.T) / 2)
