"""Bayesian inference on tall data by stochastic-gradient MCMC with preferential subsampling."""

from . import dynamics, gradient, models, schedule, subsample, tune
from ._anchor import Anchor, laplace
from ._draws import Draws
from ._errors import InvalidInput, PreparationError, SamplingWarning
from ._method import Method
from ._modes import LBFGS, Adam, Newton
from ._outcome import Outcome
from ._posterior import AbstractPosterior, Posterior
from ._run import Progress
from ._sample import sample
from ._version import __version__
from .methods import METHODS, asgld_cv, asgld_cv_ps, mala, sgld, sgld_cv, sgld_cv_ps, sgld_ps, ula

__all__ = [
    "LBFGS",
    "METHODS",
    "AbstractPosterior",
    "Adam",
    "Anchor",
    "Draws",
    "InvalidInput",
    "Method",
    "Newton",
    "Outcome",
    "Posterior",
    "PreparationError",
    "Progress",
    "SamplingWarning",
    "__version__",
    "asgld_cv",
    "asgld_cv_ps",
    "dynamics",
    "gradient",
    "laplace",
    "mala",
    "models",
    "sample",
    "schedule",
    "sgld",
    "sgld_cv",
    "sgld_cv_ps",
    "sgld_ps",
    "subsample",
    "tune",
    "ula",
]
