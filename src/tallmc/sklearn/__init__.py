"""Bayesian regressions as scikit-learn estimators. Needs scikit-learn."""

try:
    from sklearn.base import BaseEstimator as _BaseEstimator  # noqa: F401
except ImportError as error:
    raise ImportError("tallmc.sklearn needs scikit-learn: pip install 'tallmc[sklearn]'") from error

# isort: split

from .classifiers import TallLogisticRegression, TallSoftmaxRegression
from .regressors import TallLinearRegression, TallPoissonRegressor

__all__ = [
    "TallLinearRegression",
    "TallLogisticRegression",
    "TallPoissonRegressor",
    "TallSoftmaxRegression",
]
