"""Bayesian inference on tall data by stochastic-gradient MCMC with preferential subsampling."""

from . import diagnose, dynamics, geometry, gradient, models, reference, report, schedule, store, subsample, tuning
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
from .tuning import Budget, tune

ask_for_whole_loops()

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
