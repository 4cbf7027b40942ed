"""Bayesian regressions as scikit-learn estimators. Needs scikit-learn."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "tallmc.interop.sklearn needs scikit-learn: pip install 'tallmc[sklearn]'"
    ) from error

# isort: split

from .estimators import (
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
