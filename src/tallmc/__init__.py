"""Bayesian inference on tall data by stochastic-gradient MCMC with preferential subsampling."""

import importlib
from typing import TYPE_CHECKING, Any

from . import dynamics, geometry, gradient, methods, models, rows, schedule, subsample
from ._api import check, cite, resume, sample
from ._core import startup  # first: it pauses the garbage collector
from ._core.cache import cache, use_cache_if_asked
from ._core.compiler import ask_for_whole_loops
from ._core.errors import InvalidInput, PreparationError, SamplingWarning
from ._version import __version__
from .methods import Automatic, Method, suggest
from .models.posterior import Posterior
from .results import Draws

if TYPE_CHECKING:
    from . import contrib, diagnose, priors, reference
    from ._fit import fit, load
    from ._ingestion import ingest
    from .interop.numpyro import from_numpyro
    from .interop.pymc import from_pymc
    from .tuning import tune

# isort: split


ask_for_whole_loops()
use_cache_if_asked()

_LAZY = {
    "anchor": "anchor",
    "contrib": "contrib",
    "correction": "correction",
    "diagnose": "diagnose",
    "fit": "_fit:fit",
    "from_numpyro": "interop.numpyro:from_numpyro",
    "from_pymc": "interop.pymc:from_pymc",
    "ingest": "_ingestion:ingest",
    "interop": "interop",
    "load": "_fit:load",
    "priors": "priors",
    "reference": "reference",
    "report": "report",
    "tune": "tuning:tune",
    "tuning": "tuning",
}
"""Names imported on first access: a module, or a module and a name in it."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place, _, attribute = _LAZY[name].partition(":")
    module = importlib.import_module(f".{place}", __name__)
    return getattr(module, attribute) if attribute else module


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

startup.resume_collection()
