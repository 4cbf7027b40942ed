"""Ready-made posteriors: regressions, and the mean of a Gaussian."""

from .gaussian import gaussian
from .generalised_linear import logistic_regression, poisson_regression
from .linear import linear_regression
from .negative_binomial import negative_binomial_regression
from .softmax import softmax_regression

__all__ = [
    "gaussian",
    "linear_regression",
    "logistic_regression",
    "negative_binomial_regression",
    "poisson_regression",
    "softmax_regression",
]
