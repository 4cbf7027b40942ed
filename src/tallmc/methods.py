"""The papers' methods by name. Each is a composition of parts; write your own the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ._method import AbstractMethod, Method
from .correction import NoiseCorrection
from .dynamics import (
    MALA,
    Hamiltonian,
    Langevin,
    LeimkuhlerMatthews,
    NoseHoover,
    RandomWalk,
    RiemannianHamiltonian,
    RiemannianLangevin,
    RMSprop,
    Splitting,
    Underdamped,
)
from .firefly import FlyMC
from .gradient import SAGA, SVRG, ControlVariate, Full, Simple
from .schedule import AbstractSchedule, Cyclical
from .subsample import Adaptive, AllRows, ExponentiallyWeighted, Preferential, SizeChoice, Stratified, Uniform

StepSize = float | AbstractSchedule
Size = int | SizeChoice


def ula(step_size: StepSize) -> Method:
    """The unadjusted Langevin algorithm: exact gradients, every step a pass over the data."""
    return Method(dynamics=Langevin(), gradient=Full(), subsample=AllRows(), step_size=step_size)


def mala(step_size: StepSize) -> Method:
    """The Metropolis-adjusted Langevin algorithm: exact, every step a pass over the data."""
    return Method(dynamics=MALA(), gradient=Full(), subsample=AllRows(), step_size=step_size)


def random_walk(step_size: StepSize) -> Method:
    """Random-walk Metropolis: exact, every step a pass over the data."""
    return Method(dynamics=RandomWalk(), gradient=Full(), subsample=AllRows(), step_size=step_size)


def sgld(step_size: StepSize, size: Size, replace: bool = True) -> Method:
    """Stochastic gradient Langevin dynamics, uniform subsamples."""
    return Method(dynamics=Langevin(), gradient=Simple(), subsample=Uniform(replace), size=size, step_size=step_size)


def sgld_cv(step_size: StepSize, size: Size, replace: bool = True) -> Method:
    """SGLD with control variates around the mode."""
    return Method(dynamics=Langevin(), gradient=ControlVariate(), subsample=Uniform(replace), size=size, step_size=step_size)


def sgld_ps(step_size: StepSize, size: Size, floor: float = 0.05) -> Method:
    """SGLD with preferential subsampling, p_i ∝ ‖∇f_i(θ̂)‖."""
    subsample = Preferential("gradient", floor)
    return Method(dynamics=Langevin(), gradient=Simple(), subsample=subsample, size=size, step_size=step_size)


def sgld_cv_ps(step_size: StepSize, size: Size, floor: float = 0.05) -> Method:
    """SGLD with control variates and preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ)."""
    subsample = Preferential("curvature", floor)
    return Method(dynamics=Langevin(), gradient=ControlVariate(), subsample=subsample, size=size, step_size=step_size)


def asgld_cv(step_size: StepSize, noise_threshold: float | None = None) -> Method:
    """SGLD-CV whose size follows the state; without a threshold, pilot runs find it."""
    return sgld_cv(step_size, Adaptive(noise_threshold))


def asgld_cv_ps(step_size: StepSize, noise_threshold: float | None = None, floor: float = 0.05) -> Method:
    """SGLD-CV-PS whose size follows the state; without a threshold, pilot runs find it."""
    return sgld_cv_ps(step_size, Adaptive(noise_threshold), floor)


def cyclical_sgld(step_size: float, size: Size, cycle: int, sampling: float = 0.25) -> Method:
    """SGLD with a cyclical step size that is largest at the start of each cycle; draws come from the end of each."""
    return sgld(Cyclical(step_size, cycle, sampling), size)


def sgld_lm(step_size: StepSize, size: Size) -> Method:
    """SGLD with the averaged noise of Leimkuhler and Matthews, one order more accurate in the step size."""
    return Method(dynamics=LeimkuhlerMatthews(), size=size, step_size=step_size)


def psgld(step_size: StepSize, size: Size, decay: float = 0.99, regulariser: float = 1e-5, gamma: bool = True) -> Method:
    """Preconditioned SGLD: a step a parameter from the size of its gradients (RMSprop), with its Γ term."""
    return Method(dynamics=RMSprop(decay, regulariser, gamma), size=size, step_size=step_size)


def sgrld(step_size: StepSize, size: Size, metric: Any = "fisher") -> Method:
    """Riemannian SGLD: Langevin dynamics that follows a metric."""
    return Method(dynamics=RiemannianLangevin(metric), size=size, step_size=step_size)


def svrg_ld(step_size: StepSize, size: Size, every: int) -> Method:
    """SGLD with control variates around a centre that moves to the chain at intervals, each at the cost of a pass."""
    return Method(gradient=SVRG(every), size=size, step_size=step_size)


def saga_ld(step_size: StepSize, size: Size) -> Method:
    """SGLD with control variates from a table of the gradients last seen, one entry a row."""
    return Method(gradient=SAGA(), size=size, step_size=step_size)


def saga_ld_ps(step_size: StepSize, size: Size, floor: float = 0.05) -> Method:
    """SAGA-LD with preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ)."""
    return Method(gradient=SAGA(), subsample=Preferential("curvature", floor), size=size, step_size=step_size)


def ewsg_overdamped(step_size: StepSize, size: Size, length: int = 1) -> Method:
    """SGLD with exponentially weighted subsamples."""
    return Method(subsample=ExponentiallyWeighted(length), size=size, step_size=step_size)


def sghmc(step_size: StepSize, size: Size, friction: float) -> Method:
    """Underdamped Langevin dynamics in the papers' Euler form (also called SGULD)."""
    return Method(dynamics=Underdamped(friction), size=size, step_size=step_size)


def sghmc_cv(step_size: StepSize, size: Size, friction: float) -> Method:
    """SGHMC with control variates around the mode."""
    return Method(dynamics=Underdamped(friction), gradient=ControlVariate(), size=size, step_size=step_size)


def sghmc_cv_ps(step_size: StepSize, size: Size, friction: float, floor: float = 0.05) -> Method:
    """SGHMC with control variates and preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ)."""
    dynamics, subsample = Underdamped(friction), Preferential("curvature", floor)
    return Method(dynamics=dynamics, gradient=ControlVariate(), subsample=subsample, size=size, step_size=step_size)


def sghmc_trajectories(step_size: StepSize, size: Size, length: int, friction: float = 0.0) -> Method:
    """SGHMC in trajectories: the momentum is drawn afresh at intervals, the subsample in every step."""
    return Method(dynamics=Hamiltonian(length, friction), size=size, step_size=step_size)


def sg_baoab(step_size: StepSize, size: Size, friction: float) -> Method:
    """Underdamped Langevin dynamics by the BAOAB splitting, one order more accurate in the step size."""
    return Method(dynamics=Splitting(friction), size=size, step_size=step_size)


def sgnht(step_size: StepSize, size: Size, friction: float) -> Method:
    """The stochastic gradient Nosé–Hoover thermostat, whose friction adapts to gradient noise."""
    return Method(dynamics=NoseHoover(friction), size=size, step_size=step_size)


def sgnht_cv(step_size: StepSize, size: Size, friction: float) -> Method:
    """SGNHT with control variates around the mode."""
    return Method(dynamics=NoseHoover(friction), gradient=ControlVariate(), size=size, step_size=step_size)


def sgnht_cv_ps(step_size: StepSize, size: Size, friction: float, floor: float = 0.05) -> Method:
    """SGNHT with control variates and preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ)."""
    dynamics, subsample = NoseHoover(friction), Preferential("curvature", floor)
    return Method(dynamics=dynamics, gradient=ControlVariate(), subsample=subsample, size=size, step_size=step_size)


def sgrhmc(step_size: StepSize, size: Size, metric: Any = "fisher", friction: float = 1.0) -> Method:
    """Riemannian SGHMC: underdamped dynamics that follows a metric."""
    return Method(dynamics=RiemannianHamiltonian(metric, friction), size=size, step_size=step_size)


def ewsg(step_size: StepSize, size: Size, friction: float, length: int = 1, carry: bool = False) -> Method:
    """SGHMC with exponentially weighted subsamples, chosen by a short Metropolis chain over batches."""
    subsample = ExponentiallyWeighted(length, carry=carry)
    return Method(dynamics=Underdamped(friction), subsample=subsample, size=size, step_size=step_size)


def cp_sghmc(step_size: StepSize, size: Size, friction: float, strata: int = 10) -> Method:
    """SGHMC with a share of each batch from every cluster of rows (clustering-based preprocessing)."""
    return Method(dynamics=Underdamped(friction), subsample=Stratified(strata), size=size, step_size=step_size)


def ewsg_vr(step_size: StepSize, size: Size, friction: float, every: int, length: int = 1) -> Method:
    """EWSG with friction added for its gradient noise, calibrated at intervals by a pass over the data."""
    return Method(
        dynamics=Underdamped(friction),
        subsample=ExponentiallyWeighted(length),
        correction=NoiseCorrection("dense", through="friction", calibrate_every=every),
        size=size,
        step_size=step_size,
    )


def flymc(step_size: StepSize, fraction: float = 0.1) -> FlyMC:
    """Firefly Monte Carlo: exact, for logistic regression; a step looks at a share of the rows and at those that are bright."""
    return FlyMC(step_size=step_size, fraction=fraction)


class Named(NamedTuple):
    """A named method, the place that defines it, and an example of its settings beside the step size."""

    make: Callable[..., AbstractMethod]
    equation: str
    example: dict[str, Any]

    @property
    def axes(self) -> dict[str, str]:
        """What it is composed of: dynamics, gradient, subsample, size."""
        return self.make(1.0, **self.example).axes


METHODS = {
    "ula": Named(ula, "eq. 2", {}),
    "mala": Named(mala, "Roberts and Tweedie (1996)", {}),
    "random_walk": Named(random_walk, "Metropolis et al. (1953)", {}),
    "flymc": Named(flymc, "Maclaurin and Adams (2014)", {}),
    "sgld": Named(sgld, "eqs. 3, 4", {"size": 2}),
    "sgld_cv": Named(sgld_cv, "eq. 5", {"size": 2}),
    "sgld_ps": Named(sgld_ps, "eqs. 8, 11", {"size": 2}),
    "sgld_cv_ps": Named(sgld_cv_ps, "eqs. 12, 16", {"size": 2}),
    "asgld_cv": Named(asgld_cv, "eqs. 5, 19", {}),
    "asgld_cv_ps": Named(asgld_cv_ps, "eqs. 12, 16, 19", {}),
    "cyclical_sgld": Named(cyclical_sgld, "Zhang et al. (2020)", {"size": 2, "cycle": 4}),
    "sgld_lm": Named(sgld_lm, "Leimkuhler and Matthews (2013)", {"size": 2}),
    "psgld": Named(psgld, "Li, Chen et al. (2016)", {"size": 2}),
    "sgrld": Named(sgrld, "Nemeth (2021), Table 1", {"size": 2}),
    "svrg_ld": Named(svrg_ld, "Dubey et al. (2016)", {"size": 2, "every": 10}),
    "saga_ld": Named(saga_ld, "Dubey et al. (2016)", {"size": 2}),
    "saga_ld_ps": Named(saga_ld_ps, "eq. 16 with SAGA's table", {"size": 2}),
    "ewsg_overdamped": Named(ewsg_overdamped, "Li, Wang et al. (2021), E", {"size": 2}),
    "sghmc": Named(sghmc, "Nemeth (2021), Table 1", {"size": 2, "friction": 1.0}),
    "sghmc_cv": Named(sghmc_cv, "Nemeth (2021), section 6", {"size": 2, "friction": 1.0}),
    "sghmc_cv_ps": Named(sghmc_cv_ps, "eqs. 12, 16", {"size": 2, "friction": 1.0}),
    "sghmc_trajectories": Named(sghmc_trajectories, "Chen et al. (2014)", {"size": 2, "length": 5}),
    "sg_baoab": Named(sg_baoab, "Leimkuhler and Matthews (2013)", {"size": 2, "friction": 1.0}),
    "sgnht": Named(sgnht, "Nemeth (2021), Table 1", {"size": 2, "friction": 1.0}),
    "sgnht_cv": Named(sgnht_cv, "Nemeth (2021), section 6", {"size": 2, "friction": 1.0}),
    "sgnht_cv_ps": Named(sgnht_cv_ps, "eqs. 12, 16", {"size": 2, "friction": 1.0}),
    "sgrhmc": Named(sgrhmc, "Nemeth (2021), Table 1", {"size": 2}),
    "cp_sghmc": Named(cp_sghmc, "Fu and Zhang (2017)", {"size": 20, "friction": 1.0}),
    "ewsg": Named(ewsg, "Li, Wang et al. (2021), eq. 4", {"size": 2, "friction": 1.0}),
    "ewsg_vr": Named(ewsg_vr, "Li, Wang et al. (2021), F", {"size": 2, "friction": 1.0, "every": 10}),
}
