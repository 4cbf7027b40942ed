"""Bayesian inference on tall data by stochastic-gradient MCMC with preferential subsampling."""

import importlib
from typing import TYPE_CHECKING, Any

from . import diagnose, dynamics, geometry, gradient, models, schedule, store, subsample
from ._anchor import Anchor, laplace
from ._compiler import ask_for_whole_loops
from ._draws import Draws
from ._errors import InvalidInput, PreparationError, SamplingWarning
from ._method import Method
from ._modes import LBFGS, Adam, Newton
from ._outcome import Outcome
from ._posterior import AbstractPosterior, Posterior
from ._resume import resume
from ._sample import sample
from ._version import __version__
from .automatic import Automatic
from .correction import NoiseCorrection
from .firefly import FlyMC
from .methods import (
    METHODS,
    asgld_cv,
    asgld_cv_ps,
    cp_sghmc,
    cyclical_sgld,
    ewsg,
    ewsg_overdamped,
    ewsg_vr,
    flymc,
    mala,
    psgld,
    random_walk,
    saga_ld,
    saga_ld_ps,
    sg_baoab,
    sghmc,
    sghmc_cv,
    sghmc_cv_ps,
    sghmc_trajectories,
    sgld,
    sgld_cv,
    sgld_cv_ps,
    sgld_lm,
    sgld_ps,
    sgnht,
    sgnht_cv,
    sgnht_cv_ps,
    sgrhmc,
    sgrld,
    svrg_ld,
    ula,
)
from .progress import Progress
from .store import load

if TYPE_CHECKING:
    from . import reference, report, tuning
    from .tuning import Budget, tune

ask_for_whole_loops()

_LATER = {"reference": "", "report": "", "tuning": "", "Budget": "tuning", "tune": "tuning"}
"""What a first run does without: imported when it is asked for, from its module or as one."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_LATER[name] or name}", __name__)
    return getattr(module, name) if _LATER[name] else module


__all__ = [
    "LBFGS",
    "METHODS",
    "AbstractPosterior",
    "Adam",
    "Anchor",
    "Automatic",
    "Budget",
    "Draws",
    "FlyMC",
    "InvalidInput",
    "Method",
    "Newton",
    "NoiseCorrection",
    "Outcome",
    "Posterior",
    "PreparationError",
    "Progress",
    "SamplingWarning",
    "__version__",
    "asgld_cv",
    "asgld_cv_ps",
    "cp_sghmc",
    "cyclical_sgld",
    "diagnose",
    "dynamics",
    "ewsg",
    "ewsg_overdamped",
    "ewsg_vr",
    "flymc",
    "geometry",
    "gradient",
    "laplace",
    "load",
    "mala",
    "models",
    "psgld",
    "random_walk",
    "reference",
    "report",
    "resume",
    "saga_ld",
    "saga_ld_ps",
    "sample",
    "schedule",
    "sg_baoab",
    "sghmc",
    "sghmc_cv",
    "sghmc_cv_ps",
    "sghmc_trajectories",
    "sgld",
    "sgld_cv",
    "sgld_cv_ps",
    "sgld_lm",
    "sgld_ps",
    "sgnht",
    "sgnht_cv",
    "sgnht_cv_ps",
    "sgrhmc",
    "sgrld",
    "store",
    "subsample",
    "svrg_ld",
    "tune",
    "tuning",
    "ula",
]
