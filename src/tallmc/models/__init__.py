"""Ready-made posteriors: regressions, neural networks, matrix factorisation, a Gaussian mean."""

from .families.bernoulli import binomial_regression, logistic_regression, probit_regression
from .families.gamma import gamma_regression
from .families.gaussian import linear_regression
from .families.negative_binomial import negative_binomial_regression
from .families.ordinal import ordinal_regression
from .families.poisson import poisson_regression
from .families.softmax import softmax_regression
from .families.student_t import student_t_regression
from .gaussian import gaussian
from .neural_network import ConvolutionalLayer, DenseLayer, MaxPoolLayer, neural_network
from .posterior import AbstractPosterior, Posterior

__all__ = [
    "AbstractPosterior",
    "ConvolutionalLayer",
    "DenseLayer",
    "MaxPoolLayer",
    "Posterior",
    "binomial_regression",
    "gamma_regression",
    "gaussian",
    "linear_regression",
    "logistic_regression",
    "negative_binomial_regression",
    "neural_network",
    "ordinal_regression",
    "poisson_regression",
    "probit_regression",
    "softmax_regression",
    "student_t_regression",
]
