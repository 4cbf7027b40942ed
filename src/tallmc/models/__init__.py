"""Ready-made posteriors: regressions, neural networks, matrix factorisation, a Gaussian mean."""

from .dirichlet_multinomial import dirichlet_multinomial
from .exponential import (
    binomial_regression,
    logistic_regression,
    poisson_regression,
    probit_regression,
)
from .gamma import gamma_regression
from .gaussian import gaussian
from .group_priors import NormalGroups
from .hidden_markov import hidden_markov
from .layers import ConvolutionalLayer, DenseLayer, MaxPoolLayer
from .lda import lda
from .linear import linear_regression
from .local import Local
from .matrix_factorisation import matrix_factorisation
from .mixed_effects import mixed_effects
from .mixed_membership import mixed_membership
from .negative_binomial import negative_binomial_regression
from .network import HeldOutPairs, held_out_pairs
from .neural_network import neural_network
from .ordinal import ordinal_regression
from .softmax import softmax_regression
from .state_space import state_space
from .student_t import student_t_regression
from .top_words import top_words

__all__ = [
    "ConvolutionalLayer",
    "DenseLayer",
    "HeldOutPairs",
    "Local",
    "MaxPoolLayer",
    "NormalGroups",
    "binomial_regression",
    "dirichlet_multinomial",
    "gamma_regression",
    "gaussian",
    "held_out_pairs",
    "hidden_markov",
    "lda",
    "linear_regression",
    "logistic_regression",
    "matrix_factorisation",
    "mixed_effects",
    "mixed_membership",
    "negative_binomial_regression",
    "neural_network",
    "ordinal_regression",
    "poisson_regression",
    "probit_regression",
    "softmax_regression",
    "state_space",
    "student_t_regression",
    "top_words",
]
