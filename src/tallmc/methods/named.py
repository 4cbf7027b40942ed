"""The methods of the papers by name: each is a composition of parts.

One decorated function per method. The decorator names the paper and gives example settings. What
the methods have in common:

- `step_size`: the step size ε, a number or a schedule.
- `batch_size`: rows per step, a number or a size choice such as `BoundedNoise(...)`.
- `replace`: whether rows are drawn with replacement.
- `floor`: the share of uniform weights mixed into the weights of preferential subsampling.
- `noise_threshold`: V₀ in eq. 19 of Putcha, Nemeth and Fearnhead (2023); by default found by pilot
  runs.
- `friction`: the friction γ of the momentum.
- `metric`: "fisher", or a function from the parameters to a positive definite d×d matrix.
- `every`: steps between passes over all rows.
- `length`: steps per trajectory; with exponential weights, Metropolis steps over batches per step.
- `order`: the order of the Taylor expansions that rows are compared with, 0 to 3. Order 3 takes d³
  numbers and reads fewest rows.

A method that differs from another one in a part is that method `with_parts`. Named methods of
topics are in `tallmc.contrib`.
"""

from __future__ import annotations

from dataclasses import replace as with_parts
from typing import Any

from ..correction import NoiseCorrection, Shape
from ..dynamics import (
    BAOAB,
    MALA,
    SGHMC,
    FisherScoring,
    GeometricLangevin,
    Hamiltonian,
    LeimkuhlerMatthews,
    MatrixFriction,
    Microcanonical,
    NoseHoover,
    PreconditionedLangevin,
    RandomWalk,
    RiemannianHamiltonian,
    RiemannianLangevin,
)
from ..geometry import GeometryChoice, Identity, NoiseDiagonal
from ..gradient import SAGA, SVRG, ControlVariate, Full
from ..schedule import Cyclical
from ..subsample import (
    AllRows,
    BoundedNoise,
    ExponentiallyWeighted,
    Preferential,
    Stratified,
    Uniform,
)
from . import firefly, subsampled
from .method import Method, Size, StepSize
from .registry import named

_BATCH = {"batch_size": 2}
_FRICTION = {"batch_size": 2, "friction": 1.0}
_EVERY = {"batch_size": 2, "every": 10}

# Langevin dynamics without momentum.


@named("Welling and Teh (2011), eq. 4", example=_BATCH)
def sgld(step_size: StepSize, batch_size: Size, replace: bool = True) -> Method:
    """Stochastic gradient Langevin dynamics with uniform subsamples."""
    return Method(step_size=step_size, batch_size=batch_size, subsample=Uniform(replace))


@named("Baker, Fearnhead, Fox and Nemeth (2019)", example=_BATCH)
def sgld_cv(step_size: StepSize, batch_size: Size, replace: bool = True) -> Method:
    """SGLD with control variates around the mode."""
    gradient, subsample = ControlVariate(), Uniform(replace)
    return Method(
        step_size=step_size, batch_size=batch_size, gradient=gradient, subsample=subsample
    )


@named("Putcha, Nemeth and Fearnhead (2023), eqs. 8, 11", example=_BATCH)
def sgld_ps(step_size: StepSize, batch_size: Size, floor: float = 0.05) -> Method:
    """SGLD with preferential subsampling, p_i ∝ ‖∇f_i(θ̂)‖."""
    return with_parts(sgld(step_size, batch_size), subsample=Preferential("gradient", floor))


@named("Putcha, Nemeth and Fearnhead (2023), eqs. 12, 16", example=_BATCH)
def sgld_cv_ps(step_size: StepSize, batch_size: Size, floor: float = 0.05) -> Method:
    """SGLD with control variates and preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ)."""
    return with_parts(sgld_cv(step_size, batch_size), subsample=Preferential("curvature", floor))


@named("Putcha, Nemeth and Fearnhead (2023), eqs. 5, 19")
def asgld_cv(step_size: StepSize, noise_threshold: float | None = None) -> Method:
    """SGLD-CV with a batch size that adapts to the state."""
    return sgld_cv(step_size, BoundedNoise(noise_threshold))


@named("Putcha, Nemeth and Fearnhead (2023), eqs. 12, 16, 19")
def asgld_cv_ps(
    step_size: StepSize, noise_threshold: float | None = None, floor: float = 0.05
) -> Method:
    """SGLD-CV-PS with a batch size that adapts to the state."""
    return sgld_cv_ps(step_size, BoundedNoise(noise_threshold), floor)


@named("Zhang, Li, Zhang, Chen and Wilson (2020)", example={"batch_size": 2, "cycle": 4})
def cyclical_sgld(step_size: float, batch_size: Size, cycle: int, sampling: float = 0.25) -> Method:
    """SGLD with a cyclical step size; draws come from the end of each cycle.

    `step_size` is the largest one, at the start of a cycle of `cycle` steps. `sampling` is the
    share of each cycle that gives draws.
    """
    return sgld(Cyclical(step_size, cycle, sampling), batch_size)


@named("Leimkuhler and Matthews (2013)", example=_BATCH)
def sgld_lm(step_size: StepSize, batch_size: Size) -> Method:
    """SGLD with the averaged noise of Leimkuhler and Matthews: discretisation bias of order 2."""
    return with_parts(sgld(step_size, batch_size), dynamics=LeimkuhlerMatthews())


@named("Li, Chen, Carlson and Carin (2016)", example=_BATCH)
def psgld(
    step_size: StepSize,
    batch_size: Size,
    decay: float = 0.99,
    regulariser: float = 1e-5,
    gamma: bool = True,
) -> Method:
    """Preconditioned SGLD: one step size per parameter from its gradients, with Γ.

    The preconditioner is 1/(λ + √V) with `regulariser` λ; V is a running mean of squared gradients
    with decay α, `decay`. Without `gamma` the drift has no Γ.
    """
    dynamics = PreconditionedLangevin(decay, regulariser, gamma)
    return with_parts(sgld(step_size, batch_size), dynamics=dynamics)


@named("Ahn, Korattikara and Welling (2012), Algorithm 1", example=_BATCH)
def sgfs(
    step_size: StepSize, batch_size: Size, shape: Shape = "dense", window: int | None = 100
) -> Method:
    """Stochastic gradient Fisher scoring: a preconditioner from the gradients of the rows seen.

    `shape` "dense" estimates the Fisher information as a d×d matrix, "diagonal" its diagonal, over
    about the last `window` batches of at least 2 rows. With None it averages over all batches, as
    in the paper; start such chains near the mode.
    """
    return with_parts(sgld(step_size, batch_size), dynamics=FisherScoring(shape, window))


@named("Nemeth and Fearnhead (2021), Table 1", example=_BATCH)
def sgrld(step_size: StepSize, batch_size: Size, metric: Any = "fisher") -> Method:
    """Riemannian SGLD: Langevin dynamics in a metric."""
    return with_parts(sgld(step_size, batch_size), dynamics=RiemannianLangevin(metric))


@named("Dubey, Reddi, Williamson, Póczos, Smola and Xing (2016)", example=_EVERY)
def svrg_ld(step_size: StepSize, batch_size: Size, every: int) -> Method:
    """SGLD with control variates around a centre, which moves to the position at intervals."""
    return Method(step_size=step_size, batch_size=batch_size, gradient=SVRG(every))


@named("Putcha, Nemeth and Fearnhead (2023), eq. 16 with SVRG's centre", example=_EVERY)
def svrg_ld_ps(step_size: StepSize, batch_size: Size, every: int, floor: float = 0.05) -> Method:
    """SVRG-LD with preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ).

    These weights are for a centre that the chain leaves by posterior standard deviations; for a
    small `every`, `Preferential("frobenius")` has those of a short walk.
    """
    plain = svrg_ld(step_size, batch_size, every)
    return with_parts(plain, subsample=Preferential("curvature", floor))


@named("Dubey, Reddi, Williamson, Póczos, Smola and Xing (2016)", example=_BATCH)
def saga_ld(step_size: StepSize, batch_size: Size) -> Method:
    """SGLD with control variates from a table that holds the last gradient of each row."""
    return Method(step_size=step_size, batch_size=batch_size, gradient=SAGA())


@named("Putcha, Nemeth and Fearnhead (2023), eq. 16 with SAGA's table", example=_BATCH)
def saga_ld_ps(step_size: StepSize, batch_size: Size, floor: float = 0.05) -> Method:
    """SAGA-LD with preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ)."""
    return with_parts(saga_ld(step_size, batch_size), subsample=Preferential("curvature", floor))


@named("Li, Wang, Zha and Tao (2021), appendix E", example=_BATCH)
def ewsg_overdamped(step_size: StepSize, batch_size: Size, length: int = 1) -> Method:
    """SGLD with exponentially weighted subsamples."""
    return with_parts(sgld(step_size, batch_size), subsample=ExponentiallyWeighted(length))


# Langevin dynamics with momentum: SGHMC and SGNHT.


@named("Chen, Fox and Guestrin (2014)", example=_FRICTION)
def sghmc(step_size: StepSize, batch_size: Size, friction: float) -> Method:
    """Underdamped Langevin dynamics in the Euler form of the papers (also called SGULD)."""
    return with_parts(sgld(step_size, batch_size), dynamics=SGHMC(friction))


@named("Nemeth and Fearnhead (2021), Table 1", example=_FRICTION)
def sghmc_matrix(step_size: StepSize, batch_size: Size, friction: Any) -> Method:
    """SGHMC with a friction matrix C, which can damp every direction critically.

    `friction` is a positive definite d×d matrix, d numbers for its diagonal, or a number.
    """
    return with_parts(sgld(step_size, batch_size), dynamics=MatrixFriction(friction))


@named("Nemeth and Fearnhead (2021), Table 1 and section 2.3", example=_FRICTION)
def sghmc_cv(step_size: StepSize, batch_size: Size, friction: float) -> Method:
    """SGHMC with control variates around the mode, in the Euler form of `sghmc`.

    `sghmc_cv_trajectories` is the form with leapfrog steps.
    """
    return with_parts(sgld_cv(step_size, batch_size), dynamics=SGHMC(friction))


@named("Putcha, Nemeth and Fearnhead (2023), eqs. 12, 16", example=_FRICTION)
def sghmc_cv_ps(
    step_size: StepSize, batch_size: Size, friction: float, floor: float = 0.05
) -> Method:
    """SGHMC with control variates and preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ)."""
    uniform = sghmc_cv(step_size, batch_size, friction)
    return with_parts(uniform, subsample=Preferential("curvature", floor))


@named("Chen, Fox and Guestrin (2014)", example={"batch_size": 2, "length": 5, "friction": 1.0})
def sghmc_trajectories(
    step_size: StepSize, batch_size: Size, length: int, friction: float
) -> Method:
    """SGHMC in trajectories: a new momentum per trajectory, a new subsample per step.

    With friction 0 the energy that gradient noise adds grows with `length`.
    """
    return with_parts(sgld(step_size, batch_size), dynamics=Hamiltonian(length, friction))


@named("Nemeth and Fearnhead (2021), section 6", example=_FRICTION)
def sghmc_cv_trajectories(
    step_size: StepSize, batch_size: Size, friction: float, length: int = 5
) -> Method:
    """SGHMC in trajectories with control variates around the mode.

    SGHMC-CV of Nemeth and Fearnhead (2021), section 6, which has five leapfrog steps.
    """
    return with_parts(sgld_cv(step_size, batch_size), dynamics=Hamiltonian(length, friction))


@named("Leimkuhler and Matthews (2013)", example=_FRICTION)
def sg_baoab(step_size: StepSize, batch_size: Size, friction: float) -> Method:
    """Underdamped Langevin dynamics by the BAOAB splitting: discretisation bias of order 2."""
    return with_parts(sgld(step_size, batch_size), dynamics=BAOAB(friction))


@named("Ding, Fang, Babbush, Chen, Skeel and Neven (2014)", example=_FRICTION)
def sgnht(step_size: StepSize, batch_size: Size, friction: float) -> Method:
    """Stochastic gradient Nosé–Hoover thermostat: the friction adapts to gradient noise.

    `friction` is A, the friction without gradient noise.
    """
    return with_parts(sgld(step_size, batch_size), dynamics=NoseHoover(friction))


@named("Nemeth and Fearnhead (2021), Table 1 and section 2.3", example=_FRICTION)
def sgnht_cv(step_size: StepSize, batch_size: Size, friction: float) -> Method:
    """SGNHT with control variates around the mode."""
    return with_parts(sgld_cv(step_size, batch_size), dynamics=NoseHoover(friction))


@named("Putcha, Nemeth and Fearnhead (2023), eqs. 12, 16", example=_FRICTION)
def sgnht_cv_ps(
    step_size: StepSize, batch_size: Size, friction: float, floor: float = 0.05
) -> Method:
    """SGNHT with control variates and preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ)."""
    uniform = sgnht_cv(step_size, batch_size, friction)
    return with_parts(uniform, subsample=Preferential("curvature", floor))


@named("Nemeth and Fearnhead (2021), Table 1", example=_BATCH)
def sgrhmc(
    step_size: StepSize, batch_size: Size, metric: Any = "fisher", friction: float | None = None
) -> Method:
    """Riemannian SGHMC: underdamped Langevin dynamics in a metric.

    `friction` multiplies G⁻¹. By default it damps critically in the metric's coordinates; Table 1
    of Nemeth and Fearnhead (2021) has 1.
    """
    dynamics = RiemannianHamiltonian(metric, friction)
    return with_parts(sgld(step_size, batch_size), dynamics=dynamics)


@named("Fu and Zhang (2017)", example={"batch_size": 20, "friction": 1.0})
def cp_sghmc(step_size: StepSize, batch_size: Size, friction: float, strata: int = 10) -> Method:
    """SGHMC with rows drawn from every cluster of rows (clustering-based preprocessing).

    `strata` is the number of k-means clusters.
    """
    return with_parts(sghmc(step_size, batch_size, friction), subsample=Stratified(strata))


@named("Sommer, Diao, Robnik, Seljak and Rügamer (2026)", example=_FRICTION)
def sgmclmc(
    step_size: StepSize, batch_size: Size, friction: float, precondition: bool = True
) -> Method:
    """Stochastic-gradient microcanonical Langevin dynamics; with many chains, SMILE.

    A step has the length (ε/2)√d in its coordinates. `friction` is the rate at which the direction
    of the momentum is forgotten. `precondition` makes the gradient noise at the mode equally large
    for all parameters.
    """
    plain = sgld(step_size, batch_size)
    geometry = NoiseDiagonal() if precondition else Identity()
    return with_parts(plain, dynamics=Microcanonical(friction), geometry=geometry)


# Exponential weights with momentum. The paper (footnote 2) names further integrators.


@named("Li, Wang, Zha and Tao (2021), eq. 4", example=_FRICTION)
def ewsg(
    step_size: StepSize, batch_size: Size, friction: float, length: int = 1, carry: bool = False
) -> Method:
    """SGHMC with exponentially weighted subsamples, from a short Metropolis chain over batches.

    With `carry` each Metropolis chain starts at the batch of the last step. With `length` 1 this is
    worse than SGHMC on the paper's own example; see docs/samplers.md.
    """
    subsample = ExponentiallyWeighted(length, carry=carry)
    return with_parts(sghmc(step_size, batch_size, friction), subsample=subsample)


@named("Li, Wang, Zha and Tao (2021), appendix F", example=_FRICTION | _EVERY)
def ewsg_vr(
    step_size: StepSize, batch_size: Size, friction: float, every: int, length: int = 1
) -> Method:
    """EWSG with added friction that corrects for gradient noise, calibrated at intervals."""
    correction = NoiseCorrection("dense", through="friction", calibrate_every=every)
    return with_parts(ewsg(step_size, batch_size, friction, length), correction=correction)


@named("Li, Wang, Zha and Tao (2021), footnote 2", example=_FRICTION)
def ewsg_baoab(step_size: StepSize, batch_size: Size, friction: float, length: int = 1) -> Method:
    """EWSG for underdamped Langevin dynamics by the BAOAB splitting."""
    return with_parts(ewsg_overdamped(step_size, batch_size, length), dynamics=BAOAB(friction))


@named("Li, Wang, Zha and Tao (2021), footnote 2", example=_FRICTION)
def ewsg_gla(step_size: StepSize, batch_size: Size, friction: float, length: int = 1) -> Method:
    """EWSG for the geometric Langevin algorithm, which the paper names beside Euler steps."""
    dynamics = GeometricLangevin(friction)
    return with_parts(ewsg_overdamped(step_size, batch_size, length), dynamics=dynamics)


# Exact draws, from a few rows or from all of them, and the unadjusted algorithm on all rows.


@named("Prado, Nemeth and Sherlock (2024)")
def subsampled_mh(
    step_size: StepSize = 1.0,
    *,
    proposal: str = "pcn",
    order: int = 2,
    caps: float = 1.0,
    bound: firefly.Taylor | None = None,
) -> subsampled.SubsampledMH:
    """Metropolis–Hastings with scalable subsampling: exact, from a Poisson number of rows.

    For logistic, probit, binomial, Poisson, linear, softmax, Student-t and Gamma regression, linear
    regression of unknown scale, and any model with a bound of yours.

    - `step_size`: h. Proposals "pcn" with h = 1 are independent of the position.
    - `proposal`: "pcn", "langevin" or "random-walk", in the coordinates of the anchor's Gaussian.
    - `caps`: the fraction of the bound on each row's change that is used. Below 1 fewer rows are
      read, rows that exceed their cap are counted where they are looked at, and the draws count as
      not checked.
    - `bound`: a `Taylor(...)` with your bound on the Taylor remainders of the rows, for any model.
      Needs order 2 and double precision. By default the bound comes from the model.
    """
    return subsampled.SubsampledMH(
        step_size=step_size, proposal=proposal, order=order, caps=caps, bound=bound
    )


@named("Zhang, Cooper and De Sa (2020)")
def tuna_mh(step_size: StepSize, *, chi: float = 1e-3, order: int = 0) -> subsampled.SubsampledMH:
    """TunaMH: exact, a random walk that decides from minibatches; χ trades rows for acceptance.

    `step_size` is h of the random walk, in posterior variances. The larger `chi`, the more rows
    and the higher the acceptance rate. The authors have order 0.
    """
    return subsampled.SubsampledMH(
        step_size=step_size, proposal="random-walk", order=order, rule="tuna", chi=chi
    )


@named("Cornish, Vanetti, Bouchard-Côté, Deligiannidis and Doucet (2019)")
def smh(step_size: StepSize = 1.0, *, order: int = 2) -> subsampled.SubsampledMH:
    """Scalable Metropolis–Hastings: exact, with one acceptance factor per row.

    Proposals with step size h = 1 are independent of the position. The paper has order 1 or 2.
    """
    return subsampled.SubsampledMH(step_size=step_size, order=order, rule="factorised")


@named("Maclaurin and Adams (2014)")
def flymc(
    step_size: StepSize,
    fraction: float = 0.1,
    bound: firefly.BoundChoice | None = None,
    *,
    proposal: str = "langevin",
    geometry: GeometryChoice | None = None,
) -> firefly.FlyMC:
    """Firefly Monte Carlo: exact, uses bright rows and a share of all rows.

    `fraction` is the share of the rows whose brightness is redrawn per step. `bound` is the lower
    bound on each likelihood: by default `Tangent()`, for logistic regression; `Taylor(...)` bounds
    any likelihood whose Taylor remainder you can bound. The proposal, "langevin" (MALA) or
    "random-walk", moves in the coordinates of `geometry`.
    """
    geometry = Identity() if geometry is None else geometry
    return firefly.FlyMC(
        step_size=step_size, fraction=fraction, proposal=proposal, geometry=geometry, bound=bound
    )


@named("Putcha, Nemeth and Fearnhead (2023), eq. 2")
def ula(step_size: StepSize) -> Method:
    """Unadjusted Langevin algorithm: exact gradients, one pass over the data per step."""
    return Method(step_size=step_size, gradient=Full(), subsample=AllRows())


@named("Roberts and Tweedie (1996)")
def mala(step_size: StepSize) -> Method:
    """Metropolis-adjusted Langevin algorithm: exact, one pass over the data per step."""
    return with_parts(ula(step_size), dynamics=MALA())


@named("Metropolis, Rosenbluth, Rosenbluth, Teller and Teller (1953)")
def random_walk(step_size: StepSize) -> Method:
    """Random-walk Metropolis: exact, one pass over the data per step."""
    return with_parts(ula(step_size), dynamics=RandomWalk())
