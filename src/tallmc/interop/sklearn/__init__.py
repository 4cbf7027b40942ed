"""Bayesian regressions as scikit-learn estimators. Needs scikit-learn."""

from ..._core.packages import check_installed

check_installed("sklearn", needed_by="tallmc.interop.sklearn")

# isort: split

from .estimators import (  # noqa: E402
    TallLinearRegression,
    TallLogisticRegression,
    TallPoissonRegressor,
    TallSoftmaxRegression,
)

__all__ = [
    "TallLinearRegression",
    "TallLogisticRegression",
    "TallPoissonRegressor",
    "TallSoftmaxRegression",
]
