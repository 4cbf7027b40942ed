"""Ready-made posteriors."""

from .gaussian import gaussian
from .glm import linear_regression, logistic_regression, poisson_regression

__all__ = ["gaussian", "linear_regression", "logistic_regression", "poisson_regression"]
