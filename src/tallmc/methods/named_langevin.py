"""Named methods of the SGLD family, without momentum."""

from __future__ import annotations

from typing import Any

from ..correction.base import Shape
from ..dynamics import FisherScoring, Langevin, LeimkuhlerMatthews, RiemannianLangevin, RMSprop
from ..gradient import SAGA, SVRG, ControlVariate, Simple
from ..schedule import Cyclical
from ..subsample import Adaptive, ExponentiallyWeighted, Preferential, Uniform
from .method import Method, Size, StepSize


def sgld(step_size: StepSize, size: Size, replace: bool = True) -> Method:
    """Stochastic gradient Langevin dynamics with uniform subsamples.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `replace`: whether rows are drawn with replacement.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sgld(step_size=0.1, size=2).axes["subsample"]
    'Uniform'
    """
    return Method(
        dynamics=Langevin(),
        gradient=Simple(),
        subsample=Uniform(replace),
        size=size,
        step_size=step_size,
    )


def sgld_cv(step_size: StepSize, size: Size, replace: bool = True) -> Method:
    """SGLD with control variates around the mode.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `replace`: whether rows are drawn with replacement.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sgld_cv(step_size=0.1, size=2).axes["gradient"]
    'ControlVariate'
    """
    return Method(
        dynamics=Langevin(),
        gradient=ControlVariate(),
        subsample=Uniform(replace),
        size=size,
        step_size=step_size,
    )


def sgld_ps(step_size: StepSize, size: Size, floor: float = 0.05) -> Method:
    """SGLD with preferential subsampling, p_i ∝ ‖∇f_i(θ̂)‖.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `floor`: the share of uniform weights mixed into the weights.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sgld_ps(step_size=0.1, size=2).axes["subsample"]
    'Preferential (gradient)'
    """
    subsample = Preferential("gradient", floor)
    return Method(
        dynamics=Langevin(), gradient=Simple(), subsample=subsample, size=size, step_size=step_size
    )


def sgld_cv_ps(step_size: StepSize, size: Size, floor: float = 0.05) -> Method:
    """SGLD with control variates and preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ).

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `floor`: the share of uniform weights mixed into the weights.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sgld_cv_ps(step_size=0.1, size=2).axes["subsample"]
    'Preferential (curvature)'
    """
    subsample = Preferential("curvature", floor)
    return Method(
        dynamics=Langevin(),
        gradient=ControlVariate(),
        subsample=subsample,
        size=size,
        step_size=step_size,
    )


def asgld_cv(step_size: StepSize, noise_threshold: float | None = None) -> Method:
    """SGLD-CV with a size that adapts to the state.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `noise_threshold`: V₀ in eq. 19; pilot runs find it by default.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.asgld_cv(step_size=0.1).axes["size"]
    'adaptive'
    """
    return sgld_cv(step_size, Adaptive(noise_threshold))


def asgld_cv_ps(
    step_size: StepSize, noise_threshold: float | None = None, floor: float = 0.05
) -> Method:
    """SGLD-CV-PS with a size that adapts to the state.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `noise_threshold`: V₀ in eq. 19; pilot runs find it by default.
    - `floor`: the share of uniform weights mixed into the weights.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.asgld_cv_ps(step_size=0.1).axes["size"]
    'adaptive'
    """
    return sgld_cv_ps(step_size, Adaptive(noise_threshold), floor)


def cyclical_sgld(step_size: float, size: Size, cycle: int, sampling: float = 0.25) -> Method:
    """SGLD with a cyclical step size; draws come from the end of each cycle.

    **Arguments:**

    - `step_size`: the step size at the start of a cycle, its largest value.
    - `size`: rows per step, a number or a size choice.
    - `cycle`: steps per cycle.
    - `sampling`: the share of each cycle that gives draws.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.cyclical_sgld(step_size=0.1, size=2, cycle=4).step_size.cycle
    4
    """
    return sgld(Cyclical(step_size, cycle, sampling), size)


def sgld_lm(step_size: StepSize, size: Size) -> Method:
    """SGLD with the averaged noise of Leimkuhler and Matthews: discretisation bias of order 2.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sgld_lm(step_size=0.1, size=2).dynamics
    LeimkuhlerMatthews()
    """
    return Method(dynamics=LeimkuhlerMatthews(), size=size, step_size=step_size)


def psgld(
    step_size: StepSize,
    size: Size,
    decay: float = 0.99,
    regulariser: float = 1e-5,
    gamma: bool = True,
) -> Method:
    """Preconditioned SGLD: one step size per parameter from its gradients (RMSprop), with Γ.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `decay`: the decay α of the running mean of squared gradients.
    - `regulariser`: λ in the preconditioner 1/(λ + √V).
    - `gamma`: whether the drift includes Γ.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.psgld(step_size=0.1, size=2).dynamics.decay
    0.99
    """
    return Method(dynamics=RMSprop(decay, regulariser, gamma), size=size, step_size=step_size)


def sgfs(
    step_size: StepSize, size: Size, shape: Shape = "dense", memory: int | None = 100
) -> Method:
    """Stochastic gradient Fisher scoring: a preconditioner from the gradients of the rows seen.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, at least 2.
    - `shape`: "dense" estimates the Fisher information as a d×d matrix, "diagonal" its diagonal.
    - `memory`: about how many of the last batches the estimate averages over. None averages over
      all batches, as in the paper; start such chains near the mode.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sgfs(step_size=0.1, size=2).dynamics
    FisherScoring(shape='dense', memory=100)
    """
    return Method(dynamics=FisherScoring(shape, memory), size=size, step_size=step_size)


def sgrld(step_size: StepSize, size: Size, metric: Any = "fisher") -> Method:
    """Riemannian SGLD: Langevin dynamics in a metric.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `metric`: "fisher", or a function from the parameters to a positive definite d×d matrix.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sgrld(step_size=0.1, size=2).dynamics
    RiemannianLangevin(metric='fisher')
    """
    return Method(dynamics=RiemannianLangevin(metric), size=size, step_size=step_size)


def svrg_ld(step_size: StepSize, size: Size, every: int) -> Method:
    """SGLD with control variates around a centre, which moves to the chain's position at intervals.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `every`: steps between moves of the centre; each move costs one pass over the data.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.svrg_ld(step_size=0.1, size=2, every=10).gradient
    SVRG(every=10)
    """
    return Method(gradient=SVRG(every), size=size, step_size=step_size)


def saga_ld(step_size: StepSize, size: Size) -> Method:
    """SGLD with control variates from a table that holds the last gradient of each row.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.saga_ld(step_size=0.1, size=2).gradient
    SAGA()
    """
    return Method(gradient=SAGA(), size=size, step_size=step_size)


def saga_ld_ps(step_size: StepSize, size: Size, floor: float = 0.05) -> Method:
    """SAGA-LD with preferential subsampling, p_i ∝ √tr(H_i Σ̂ H_iᵀ).

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `floor`: the share of uniform weights mixed into the weights.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.saga_ld_ps(step_size=0.1, size=2).axes["subsample"]
    'Preferential (curvature)'
    """
    return Method(
        gradient=SAGA(), subsample=Preferential("curvature", floor), size=size, step_size=step_size
    )


def ewsg_overdamped(step_size: StepSize, size: Size, length: int = 1) -> Method:
    """SGLD with exponentially weighted subsamples.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step, a number or a size choice.
    - `length`: Metropolis steps over batches per step.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.ewsg_overdamped(step_size=0.1, size=2).axes["subsample"]
    'ExponentiallyWeighted'
    """
    return Method(subsample=ExponentiallyWeighted(length), size=size, step_size=step_size)
