"""The papers' methods by name. Each is a composition of parts; write your own the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ._method import Method
from .dynamics import MALA, Langevin
from .gradient import ControlVariate, Full, Simple
from .schedule import AbstractSchedule
from .subsample import Adaptive, AllRows, Preferential, SizeChoice, Uniform

StepSize = float | AbstractSchedule


def ula(step_size: StepSize) -> Method:
    """The unadjusted Langevin algorithm: exact gradients, every step a pass over the data."""
    return Method(dynamics=Langevin(), gradient=Full(), subsample=AllRows(), step_size=step_size)


def mala(step_size: StepSize) -> Method:
    """The Metropolis-adjusted Langevin algorithm: exact, every step a pass over the data."""
    return Method(dynamics=MALA(), gradient=Full(), subsample=AllRows(), step_size=step_size)


def sgld(step_size: StepSize, size: int | SizeChoice, replace: bool = True) -> Method:
    """Stochastic gradient Langevin dynamics, uniform subsamples."""
    return Method(dynamics=Langevin(), gradient=Simple(), subsample=Uniform(replace), size=size, step_size=step_size)


def sgld_cv(step_size: StepSize, size: int | SizeChoice, replace: bool = True) -> Method:
    """SGLD with control variates around the mode."""
    return Method(dynamics=Langevin(), gradient=ControlVariate(), subsample=Uniform(replace), size=size, step_size=step_size)


def sgld_ps(step_size: StepSize, size: int | SizeChoice, floor: float = 0.05) -> Method:
    """SGLD with preferential subsampling, p_i ∝ ‖∇f_i(θ̂)‖."""
    subsample = Preferential("gradient", floor)
    return Method(dynamics=Langevin(), gradient=Simple(), subsample=subsample, size=size, step_size=step_size)


def sgld_cv_ps(step_size: StepSize, size: int | SizeChoice, floor: float = 0.05) -> Method:
    """SGLD with control variates and preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ)."""
    subsample = Preferential("curvature", floor)
    return Method(dynamics=Langevin(), gradient=ControlVariate(), subsample=subsample, size=size, step_size=step_size)


def asgld_cv(step_size: StepSize, noise_threshold: float | None = None) -> Method:
    """SGLD-CV whose size follows the state; without a threshold, pilot runs find it."""
    return sgld_cv(step_size, Adaptive(noise_threshold))


def asgld_cv_ps(step_size: StepSize, noise_threshold: float | None = None, floor: float = 0.05) -> Method:
    """SGLD-CV-PS whose size follows the state; without a threshold, pilot runs find it."""
    return sgld_cv_ps(step_size, Adaptive(noise_threshold), floor)


class Named(NamedTuple):
    """A named method, with the place in putcha-2023 that defines it."""

    make: Callable[..., Method]
    equation: str
    dynamics: str
    gradient: str
    subsample: str
    size: str


METHODS = {
    "ula": Named(ula, "eq. 2", "Langevin", "full", "all rows", "N"),
    "mala": Named(mala, "Roberts and Tweedie (1996)", "MALA", "full", "all rows", "N"),
    "sgld": Named(sgld, "eqs. 3, 4", "Langevin", "simple", "uniform", "fixed"),
    "sgld_cv": Named(sgld_cv, "eq. 5", "Langevin", "control variate", "uniform", "fixed"),
    "sgld_ps": Named(sgld_ps, "eqs. 8, 11", "Langevin", "simple", "preferential (gradient)", "fixed"),
    "sgld_cv_ps": Named(sgld_cv_ps, "eqs. 12, 16", "Langevin", "control variate", "preferential (curvature)", "fixed"),
    "asgld_cv": Named(asgld_cv, "eqs. 5, 19", "Langevin", "control variate", "uniform", "adaptive"),
    "asgld_cv_ps": Named(asgld_cv_ps, "eqs. 12, 16, 19", "Langevin", "control variate", "preferential (curvature)", "adaptive"),
}
