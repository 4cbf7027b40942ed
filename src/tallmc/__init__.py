"""Bayesian inference on millions of rows, with a verdict on the answer."""

import gc
import importlib
from typing import TYPE_CHECKING, Any

from ._core.starting import end_quietly_on_ctrl_c, is_the_command

if is_the_command():  # before anything imports JAX
    end_quietly_on_ctrl_c()

from ._core.compiler import ask_for_whole_loops
from ._core.errors import InvalidInput, PreparationError, SamplingWarning
from ._core.programs import cache, use_cache_if_asked
from ._version import __version__

if TYPE_CHECKING:
    from . import (
        contrib,
        diagnose,
        dynamics,
        geometry,
        gradient,
        methods,
        models,
        priors,
        reference,
        rows,
        schedule,
        subsample,
    )
    from ._api import check, cite, sample
    from ._fit import fit, load, resume
    from ._ingestion import ingest
    from .diagnose.comparison import compare
    from .interop.numpyro import from_numpyro
    from .interop.pymc import from_pymc
    from .methods import Automatic, Method, suggest
    from .models.posterior import Posterior
    from .results import Draws
    from .tuning import tune

# XLA reads its options once, when JAX starts a backend, so they are set before anything runs.
ask_for_whole_loops()
use_cache_if_asked()

_MODULES = {
    "anchor",
    "contrib",
    "correction",
    "diagnose",
    "dynamics",
    "geometry",
    "gradient",
    "interop",
    "methods",
    "models",
    "priors",
    "reference",
    "report",
    "rows",
    "schedule",
    "subsample",
    "tuning",
}
_DEFINED_IN = {
    "Automatic": "methods",
    "Draws": "results",
    "Method": "methods",
    "Posterior": "models.posterior",
    "check": "_api",
    "cite": "_api",
    "compare": "diagnose.comparison",
    "fit": "_fit",
    "from_numpyro": "interop.numpyro",
    "from_pymc": "interop.pymc",
    "ingest": "_ingestion",
    "load": "_fit",
    "resume": "_fit",
    "sample": "_api",
    "suggest": "methods",
    "tune": "tuning",
}


def __getattr__(name: str) -> Any:
    """Import a module or a name when it is first asked for."""
    if name not in _MODULES and name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # An import creates many objects and hardly any garbage. Collections take a tenth of its time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        module = importlib.import_module(f".{_DEFINED_IN.get(name, name)}", __name__)
    finally:
        if was_enabled:
            gc.enable()
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Automatic",
    "Draws",
    "InvalidInput",
    "Method",
    "Posterior",
    "PreparationError",
    "SamplingWarning",
    "__version__",
    "cache",
    "check",
    "cite",
    "compare",
    "contrib",
    "diagnose",
    "dynamics",
    "fit",
    "from_numpyro",
    "from_pymc",
    "geometry",
    "gradient",
    "ingest",
    "load",
    "methods",
    "models",
    "priors",
    "reference",
    "resume",
    "rows",
    "sample",
    "schedule",
    "subsample",
    "suggest",
    "tune",
]
