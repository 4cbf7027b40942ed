"""Ready-made posteriors: regressions, and the mean of a Gaussian."""

from .exponential import (
    binomial_regression,
    logistic_regression,
    poisson_regression,
    probit_regression,
)
from .gamma import gamma_regression
from .gaussian import gaussian
from .linear import linear_regression
from .negative_binomial import negative_binomial_regression
from .ordinal import ordinal_regression
from .softmax import softmax_regression
from .student_t import student_t_regression

__all__ = [
    "binomial_regression",
    "gamma_regression",
    "gaussian",
    "linear_regression",
    "logistic_regression",
    "negative_binomial_regression",
    "ordinal_regression",
    "poisson_regression",
    "probit_regression",
    "softmax_regression",
    "student_t_regression",
]
