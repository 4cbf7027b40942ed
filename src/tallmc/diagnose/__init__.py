"""Diagnostics: convergence, bias, gradient noise and predictive accuracy of draws."""

import importlib
from typing import TYPE_CHECKING, Any

from .._core.errors import Outcome
from .._core.statistics import ess, rhat
from .._engine.run import Progress
from .averages import AverageErrors, autocorrelation, average_errors
from .evidence import Evidence, evidence
from .gaussian import (
    gaussian_kl,
    langevin_covariance,
    langevin_inflation,
    leimkuhler_matthews_covariance,
)
from .kfold import kfold
from .ksd import Discrepancy, draws_ksd, exact_gradients, ksd, ksd_path
from .loo import LeaveOneOut, loo
from .pseudo_variance import Estimated, estimated_pseudo_variance, pseudo_variance
from .robust import robust
from .scores import (
    Calibration,
    accuracy,
    calibration,
    log_loss,
    log_losses,
    log_predictive_density,
    rmse,
)

if TYPE_CHECKING:
    from .._fit.marginal import marginal_effects
    from .._fit.prior_predictive import prior_predictive


def __getattr__(name: str) -> Any:
    # Imported on first access, because they load tables.
    modules = {"marginal_effects": "marginal", "prior_predictive": "prior_predictive"}
    if name in modules:
        return getattr(importlib.import_module(f".._fit.{modules[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AverageErrors",
    "Calibration",
    "Discrepancy",
    "Estimated",
    "Evidence",
    "LeaveOneOut",
    "Outcome",
    "Progress",
    "accuracy",
    "autocorrelation",
    "average_errors",
    "calibration",
    "draws_ksd",
    "ess",
    "estimated_pseudo_variance",
    "evidence",
    "exact_gradients",
    "gaussian_kl",
    "kfold",
    "ksd",
    "ksd_path",
    "langevin_covariance",
    "langevin_inflation",
    "leimkuhler_matthews_covariance",
    "log_loss",
    "log_losses",
    "log_predictive_density",
    "loo",
    "marginal_effects",
    "prior_predictive",
    "pseudo_variance",
    "rhat",
    "rmse",
    "robust",
]
