"""Diagnostics: convergence, bias, gradient noise and predictive accuracy of draws."""

from ..statistics.convergence import ess, rhat
from .autocorrelation import autocorrelation
from .averages import AverageErrors, average_errors
from .buffer_error import BufferError, buffer_error
from .calibration import Calibration, calibration
from .draws_ksd import Discrepancy, draws_ksd
from .gaussian import (
    gaussian_kl,
    langevin_covariance,
    langevin_inflation,
    leimkuhler_matthews_covariance,
)
from .gradients import exact_gradients
from .hidden_states import hidden_states
from .ksd import ksd, ksd_path
from .link_perplexity import link_perplexity
from .loo import LeaveOneOut, loo
from .path_averages import PathMoments, path_moments
from .perplexity import perplexity
from .predictive import log_loss, log_losses
from .pseudo_variance import Estimated, estimated_pseudo_variance, pseudo_variance
from .scores import accuracy, log_predictive_density, rmse
from .sparse_probabilities import SparseProbabilities, sparse_probabilities

__all__ = [
    "AverageErrors",
    "BufferError",
    "Calibration",
    "Discrepancy",
    "Estimated",
    "LeaveOneOut",
    "PathMoments",
    "SparseProbabilities",
    "accuracy",
    "autocorrelation",
    "average_errors",
    "buffer_error",
    "calibration",
    "draws_ksd",
    "ess",
    "estimated_pseudo_variance",
    "exact_gradients",
    "gaussian_kl",
    "hidden_states",
    "ksd",
    "ksd_path",
    "langevin_covariance",
    "langevin_inflation",
    "leimkuhler_matthews_covariance",
    "link_perplexity",
    "log_loss",
    "log_losses",
    "log_predictive_density",
    "loo",
    "path_moments",
    "perplexity",
    "pseudo_variance",
    "rhat",
    "rmse",
    "sparse_probabilities",
]
