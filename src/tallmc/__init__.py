"""Bayesian inference on tall data by stochastic-gradient MCMC with preferential subsampling."""

from .core import startup  # first: it pauses the garbage collector

# isort: split

import importlib
from typing import TYPE_CHECKING, Any

from . import dynamics, geometry, gradient, models, rows, schedule, store, subsample
from ._version import __version__
from .anchor import LBFGS, SGD, Adam, Anchor, Newton, laplace
from .api import check, cite, consensus, resume, sample
from .core.cache import cache, use_cache_if_asked
from .core.compiler import ask_for_whole_loops
from .core.errors import InvalidInput, PreparationError, SamplingWarning
from .core.outcome import Outcome
from .correction import NoiseCorrection
from .engine.progress import Progress
from .methods import (
    METHODS,
    Austerity,
    Automatic,
    CommunitySampler,
    FlyMC,
    LocalSGLD,
    Method,
    PseudoMarginal,
    SimplexSampler,
    SubsampledMH,
    ZigZag,
    asgld_cv,
    asgld_cv_ps,
    austerity_mh,
    cp_sghmc,
    cyclical_sgld,
    ewsg,
    ewsg_baoab,
    ewsg_gla,
    ewsg_overdamped,
    ewsg_vr,
    flymc,
    local_sgld,
    mala,
    mirrored_sgld,
    mmsb_scir,
    mmsb_sgrld,
    projected_sgld,
    pseudo_marginal_mh,
    psgld,
    random_walk,
    reflected_sgld,
    saga_ld,
    saga_ld_ps,
    scir,
    sg_baoab,
    sgfs,
    sghmc,
    sghmc_cv,
    sghmc_cv_ps,
    sghmc_cv_trajectories,
    sghmc_matrix,
    sghmc_trajectories,
    sgld,
    sgld_cv,
    sgld_cv_ps,
    sgld_lm,
    sgld_ps,
    sgmclmc,
    sgnht,
    sgnht_cv,
    sgnht_cv_ps,
    sgrhmc,
    sgrld,
    sgrld_simplex,
    smh,
    subsampled_mh,
    suggest,
    svrg_ld,
    tuna_mh,
    ula,
    zig_zag,
)
from .models.local import LocalPosterior
from .models.posterior import AbstractPosterior, Posterior
from .results import Draws

if TYPE_CHECKING:
    from . import diagnose, reference, report, tuning
    from .frontends import priors
    from .frontends.fit import FitNote, fit
    from .frontends.from_numpyro import from_numpyro
    from .frontends.from_pymc import from_pymc
    from .frontends.loading import load
    from .frontends.marginal import marginal_effects
    from .ingestion import ingest
    from .tuning import Budget, tune

ask_for_whole_loops()
use_cache_if_asked()

_LAZY = {
    "Budget": ("tuning", "Budget"),
    "FitNote": ("frontends.fit", "FitNote"),
    "diagnose": ("diagnose", None),
    "fit": ("frontends.fit", "fit"),
    "from_numpyro": ("frontends.from_numpyro", "from_numpyro"),
    "from_pymc": ("frontends.from_pymc", "from_pymc"),
    "ingest": ("ingestion", "ingest"),
    "load": ("frontends.loading", "load"),
    "marginal_effects": ("frontends.marginal", "marginal_effects"),
    "priors": ("frontends.priors", None),
    "reference": ("reference", None),
    "report": ("report", None),
    "sklearn": ("sklearn", None),  # not in `__all__`: `import *` must not hide scikit-learn
    "tune": ("tuning", "tune"),
    "tuning": ("tuning", None),
}
"""Names imported on first access: the module, and the name in it; None is the module itself."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place, attribute = _LAZY[name]
    module = importlib.import_module(f".{place}", __name__)
    return module if attribute is None else getattr(module, attribute)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "LBFGS",
    "METHODS",
    "SGD",
    "AbstractPosterior",
    "Adam",
    "Anchor",
    "Austerity",
    "Automatic",
    "Budget",
    "CommunitySampler",
    "Draws",
    "FitNote",
    "FlyMC",
    "InvalidInput",
    "LocalPosterior",
    "LocalSGLD",
    "Method",
    "Newton",
    "NoiseCorrection",
    "Outcome",
    "Posterior",
    "PreparationError",
    "Progress",
    "PseudoMarginal",
    "SamplingWarning",
    "SimplexSampler",
    "SubsampledMH",
    "ZigZag",
    "__version__",
    "asgld_cv",
    "asgld_cv_ps",
    "austerity_mh",
    "cache",
    "check",
    "cite",
    "consensus",
    "cp_sghmc",
    "cyclical_sgld",
    "diagnose",
    "dynamics",
    "ewsg",
    "ewsg_baoab",
    "ewsg_gla",
    "ewsg_overdamped",
    "ewsg_vr",
    "fit",
    "flymc",
    "from_numpyro",
    "from_pymc",
    "geometry",
    "gradient",
    "ingest",
    "laplace",
    "load",
    "local_sgld",
    "mala",
    "marginal_effects",
    "mirrored_sgld",
    "mmsb_scir",
    "mmsb_sgrld",
    "models",
    "priors",
    "projected_sgld",
    "pseudo_marginal_mh",
    "psgld",
    "random_walk",
    "reference",
    "reflected_sgld",
    "report",
    "resume",
    "rows",
    "saga_ld",
    "saga_ld_ps",
    "sample",
    "schedule",
    "scir",
    "sg_baoab",
    "sgfs",
    "sghmc",
    "sghmc_cv",
    "sghmc_cv_ps",
    "sghmc_cv_trajectories",
    "sghmc_matrix",
    "sghmc_trajectories",
    "sgld",
    "sgld_cv",
    "sgld_cv_ps",
    "sgld_lm",
    "sgld_ps",
    "sgmclmc",
    "sgnht",
    "sgnht_cv",
    "sgnht_cv_ps",
    "sgrhmc",
    "sgrld",
    "sgrld_simplex",
    "smh",
    "store",
    "subsample",
    "subsampled_mh",
    "suggest",
    "svrg_ld",
    "tuna_mh",
    "tune",
    "tuning",
    "ula",
    "zig_zag",
]

startup.resume_collection()
