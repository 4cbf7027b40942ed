"""Named methods of the SGHMC and SGNHT families, with momentum."""

from __future__ import annotations

from typing import Any

from ..correction import NoiseCorrection
from ..dynamics import (
    Hamiltonian,
    MatrixFriction,
    NoseHoover,
    RiemannianHamiltonian,
    Splitting,
    Underdamped,
)
from ..gradient import ControlVariate
from ..subsample import ExponentiallyWeighted, Preferential, Stratified
from .method import Method, Size, StepSize


def sghmc(step_size: StepSize, size: Size, friction: float) -> Method:
    """Underdamped Langevin dynamics in the Euler form of the papers (also called SGULD).

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: the friction γ.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sghmc(step_size=0.1, size=2, friction=1.0).dynamics
    Underdamped(friction=1.0)
    """
    return Method(dynamics=Underdamped(friction), size=size, step_size=step_size)


def sghmc_matrix(step_size: StepSize, size: Size, friction: Any) -> Method:
    """SGHMC with a friction matrix C, which can damp every direction critically.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: C, a positive definite d×d matrix, d numbers for its diagonal, or a number.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> friction = [[2.0, 0.5], [0.5, 1.0]]
    >>> tallmc.sghmc_matrix(step_size=0.1, size=2, friction=friction).axes["dynamics"]
    'MatrixFriction'
    """
    return Method(dynamics=MatrixFriction(friction), size=size, step_size=step_size)


def sghmc_cv(step_size: StepSize, size: Size, friction: float) -> Method:
    """SGHMC with control variates around the mode, in the Euler form of `sghmc`.

    `sghmc_cv_trajectories` is the form with leapfrog steps.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: the friction γ.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sghmc_cv(step_size=0.1, size=2, friction=1.0).axes["gradient"]
    'ControlVariate'
    """
    return Method(
        dynamics=Underdamped(friction), gradient=ControlVariate(), size=size, step_size=step_size
    )


def sghmc_cv_ps(step_size: StepSize, size: Size, friction: float, floor: float = 0.05) -> Method:
    """SGHMC with control variates and preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ).

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: the friction γ.
    - `floor`: the share of uniform weights mixed into the weights.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sghmc_cv_ps(step_size=0.1, size=2, friction=1.0).axes["subsample"]
    'Preferential (curvature)'
    """
    dynamics, subsample = Underdamped(friction), Preferential("curvature", floor)
    return Method(
        dynamics=dynamics,
        gradient=ControlVariate(),
        subsample=subsample,
        size=size,
        step_size=step_size,
    )


def sghmc_trajectories(step_size: StepSize, size: Size, length: int, friction: float) -> Method:
    """SGHMC in trajectories: a new momentum per trajectory, a new subsample per step.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `length`: steps per trajectory.
    - `friction`: the friction γ. With 0 the energy that gradient noise adds grows with `length`.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sghmc_trajectories(step_size=0.1, size=2, length=5, friction=1.0).dynamics
    Hamiltonian(length=5, friction=1.0)
    """
    return Method(dynamics=Hamiltonian(length, friction), size=size, step_size=step_size)


def sghmc_cv_trajectories(
    step_size: StepSize, size: Size, friction: float, length: int = 5
) -> Method:
    """SGHMC in trajectories with control variates around the mode.

    SGHMC-CV of Nemeth and Fearnhead (2021), section 6, which has five leapfrog steps.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: the friction γ.
    - `length`: steps per trajectory.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sghmc_cv_trajectories(step_size=0.1, size=2, friction=1.0).dynamics
    Hamiltonian(length=5, friction=1.0)
    """
    return Method(
        dynamics=Hamiltonian(length, friction),
        gradient=ControlVariate(),
        size=size,
        step_size=step_size,
    )


def sg_baoab(step_size: StepSize, size: Size, friction: float) -> Method:
    """Underdamped Langevin dynamics by the BAOAB splitting: discretisation bias of order 2.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: the friction γ.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sg_baoab(step_size=0.1, size=2, friction=1.0).dynamics
    Splitting(friction=1.0)
    """
    return Method(dynamics=Splitting(friction), size=size, step_size=step_size)


def sgnht(step_size: StepSize, size: Size, friction: float) -> Method:
    """Stochastic gradient Nosé–Hoover thermostat: the friction adapts to gradient noise.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: A, the friction without gradient noise.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sgnht(step_size=0.1, size=2, friction=1.0).dynamics
    NoseHoover(friction=1.0)
    """
    return Method(dynamics=NoseHoover(friction), size=size, step_size=step_size)


def sgnht_cv(step_size: StepSize, size: Size, friction: float) -> Method:
    """SGNHT with control variates around the mode.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: A, the friction without gradient noise.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sgnht_cv(step_size=0.1, size=2, friction=1.0).axes["gradient"]
    'ControlVariate'
    """
    return Method(
        dynamics=NoseHoover(friction), gradient=ControlVariate(), size=size, step_size=step_size
    )


def sgnht_cv_ps(step_size: StepSize, size: Size, friction: float, floor: float = 0.05) -> Method:
    """SGNHT with control variates and preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ).

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: A, the friction without gradient noise.
    - `floor`: the share of uniform weights mixed into the weights.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sgnht_cv_ps(step_size=0.1, size=2, friction=1.0).axes["subsample"]
    'Preferential (curvature)'
    """
    dynamics, subsample = NoseHoover(friction), Preferential("curvature", floor)
    return Method(
        dynamics=dynamics,
        gradient=ControlVariate(),
        subsample=subsample,
        size=size,
        step_size=step_size,
    )


def sgrhmc(
    step_size: StepSize, size: Size, metric: Any = "fisher", friction: float | None = None
) -> Method:
    """Riemannian SGHMC: underdamped Langevin dynamics in a metric.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `metric`: "fisher", or a function from the parameters to a positive definite d×d matrix.
    - `friction`: the friction γ, which multiplies G⁻¹. By default critical damping in the metric's
      coordinates; Table 1 of Nemeth and Fearnhead (2021) has 1.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sgrhmc(step_size=0.1, size=2).dynamics
    RiemannianHamiltonian(metric='fisher', friction=None)
    """
    return Method(dynamics=RiemannianHamiltonian(metric, friction), size=size, step_size=step_size)


def ewsg(
    step_size: StepSize, size: Size, friction: float, length: int = 1, carry: bool = False
) -> Method:
    """SGHMC with exponentially weighted subsamples, from a short Metropolis chain over batches.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: the friction γ.
    - `length`: Metropolis steps over batches per step.
    - `carry`: whether each Metropolis chain starts at the batch of the last step. With `length` 1
      this is worse than SGHMC on the paper's own example; see docs/samplers.md.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.ewsg(step_size=0.1, size=2, friction=1.0).axes["subsample"]
    'ExponentiallyWeighted'
    """
    subsample = ExponentiallyWeighted(length, carry=carry)
    return Method(
        dynamics=Underdamped(friction), subsample=subsample, size=size, step_size=step_size
    )


def cp_sghmc(step_size: StepSize, size: Size, friction: float, strata: int = 10) -> Method:
    """SGHMC with rows drawn from every cluster of rows (clustering-based preprocessing).

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: the friction γ.
    - `strata`: the number of k-means clusters.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.cp_sghmc(step_size=0.1, size=20, friction=1.0).axes["subsample"]
    'Stratified'
    """
    return Method(
        dynamics=Underdamped(friction), subsample=Stratified(strata), size=size, step_size=step_size
    )


def ewsg_vr(
    step_size: StepSize, size: Size, friction: float, every: int, length: int = 1
) -> Method:
    """EWSG with added friction that corrects for gradient noise, calibrated at intervals.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `friction`: the friction γ.
    - `every`: steps between calibrations; each costs one pass over the data.
    - `length`: Metropolis steps over batches per step.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.ewsg_vr(step_size=0.1, size=2, friction=1.0, every=10).axes["subsample"]
    'ExponentiallyWeighted'
    """
    return Method(
        dynamics=Underdamped(friction),
        subsample=ExponentiallyWeighted(length),
        correction=NoiseCorrection("dense", through="friction", calibrate_every=every),
        size=size,
        step_size=step_size,
    )
