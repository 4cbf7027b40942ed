"""The two-dimensional Gaussian of figures 1 and 2: the mean of N = 10,000 rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tallmc.models import gaussian
from tallmc.models.posterior import Posterior

from ..synthetic import conjugate_posterior

N_ROWS, SEED, PRIOR_VARIANCE = 10_000, 2, 100.0
COVARIANCE = np.array([[1.0, 0.6], [0.6, 1.0]])


class GaussianMean(NamedTuple):
    """The rows, the posterior, and its mean and covariance."""

    x: Float[np.ndarray, "N 2"]
    target: Posterior
    mean: Float[np.ndarray, " 2"]
    covariance: Float[np.ndarray, "2 2"]

    @property
    def smallest_variance(self) -> float:
        return float(np.linalg.eigvalsh(self.covariance)[0])


def gaussian_mean() -> GaussianMean:
    x = np.random.default_rng(SEED).multivariate_normal(np.ones(2), COVARIANCE, N_ROWS)
    mean, covariance = conjugate_posterior(x, COVARIANCE, PRIOR_VARIANCE)
    target = gaussian(x, COVARIANCE, np.zeros(2), PRIOR_VARIANCE * np.eye(2))
    return GaussianMean(x, target, mean, covariance)


def printed_target(problem: GaussianMean) -> Posterior:
    """The posterior whose SGLD has the printed gradient ∇f₀ + (1/n) Σ ∇f_i.

    Its likelihood is the N-th root of the right one: the estimate is N times smaller.
    """
    covariance = N_ROWS * COVARIANCE
    return gaussian(problem.x, covariance, np.zeros(2), PRIOR_VARIANCE * np.eye(2))
