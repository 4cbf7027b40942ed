"""Diagnostics: convergence, bias, gradient noise and predictive accuracy of draws."""

from ..statistics.convergence import ess, rhat
from .draws_ksd import Discrepancy, draws_ksd
from .gaussian import (
    gaussian_kl,
    langevin_covariance,
    langevin_inflation,
    leimkuhler_matthews_covariance,
)
from .gradients import exact_gradients
from .ksd import ksd, ksd_path
from .loo import LeaveOneOut, loo
from .predictive import log_loss, log_losses
from .pseudo_variance import Estimated, estimated_pseudo_variance, pseudo_variance

__all__ = [
    "Discrepancy",
    "Estimated",
    "LeaveOneOut",
    "draws_ksd",
    "ess",
    "estimated_pseudo_variance",
    "exact_gradients",
    "gaussian_kl",
    "ksd",
    "ksd_path",
    "langevin_covariance",
    "langevin_inflation",
    "leimkuhler_matthews_covariance",
    "log_loss",
    "log_losses",
    "loo",
    "pseudo_variance",
    "rhat",
]
