"""Models of NumPyro and PyMC, and estimators for scikit-learn. Each is imported on first access."""

import importlib
from typing import Any

__all__ = ["numpyro", "pymc", "sklearn"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f".{name}", __name__)
